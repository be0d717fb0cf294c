"""Turns tasks into the plan: every rollout that is owed, in the order of the task file. Pure and lazy.

Equal lines are the same task. The rollouts of a task are numbered from 0 without gaps, across all lines that belong to
it, so a key ``(task, rollout)`` occurs once. What is wrong with the tasks is collected and raised after the last one,
all at once. So a plan may be used only after it has been read to its end.
"""

import json
import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.config.environments import Routing
from nemo_gym.config.keys import ENVIRONMENT_SERVER_ROUTES
from nemo_gym.config.locate import find_readable, readable_candidates
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.rollouts.store.output import Request
from nemo_gym.rollouts.tasks import (
    MissingFieldError,
    PromptConfig,
    Shard,
    Task,
    conflict,
    has_input,
    read_tasks,
    render,
    with_prompt,
)
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.episodes import is_materialized_task_row
from nemo_gym.schemas.record import Record, Row
from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

logger = logging.getLogger(__name__)

DEFAULT_REPEATS_KEY = "_default"


class TaskError(ConfigError, ValueError):
    """Tasks that can't be planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpec:
    """How rollouts are made from tasks."""

    agent: str | None = None  # for tasks that name none
    repeats: int | Mapping[str, int] = 1  # one number for all agents, or one for each
    overrides: Mapping[str, Any] = field(default_factory=dict)  # parameters of the request that win over the task's own
    prompt: PromptConfig | None = None
    skills_ref: Mapping[str, Any] | None = None
    seeded: bool = False  # give each rollout of a task a different seed
    shard: Shard | None = None  # plan only this part of the tasks; all of them are read and checked
    routing: Routing = field(default_factory=Routing)  # which servers take tasks that name a source or a task set
    default_agent: str | None = None  # for tasks that name neither an agent nor a source

    def times(self, agent: str) -> int | None:
        """How many rollouts a task of this agent gets; None if that is not set."""
        if isinstance(self.repeats, int):
            return self.repeats
        return self.repeats.get(agent, self.repeats.get(DEFAULT_REPEATS_KEY))


def plan_rollouts(tasks: Iterable[Task], spec: PlanSpec) -> Iterator[Row]:
    """Every rollout of every task; the repeats of a line follow each other."""
    problems, numbering = _Problems(), _Numbering()
    for task in tasks:
        row = _prepare(task, spec, problems)
        if row is None:
            continue
        agent = Record(row).agent or ""
        problems.agents.add(agent)
        times = spec.times(agent)
        if times is None:
            problems.unlisted.add(agent)
            continue
        # Numbered before the shard is chosen, so that a task has the same index in every part.
        row[TASK_INDEX_KEY_NAME] = index = numbering.task_index(task)
        if spec.shard is not None and not spec.shard.has(index):
            continue
        for rollout in numbering.next_rollouts(index, times):
            yield _repeat(row, rollout, spec, task.number)
    problems.report(spec)


class _Numbering:
    """Hands out task and rollout indices."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, int] = {}
        self._next: dict[int, int] = {}

    def task_index(self, task: Task) -> int:
        """The index that the task brings along, otherwise one for its text. The two kinds are independent."""
        given = Record(task.fields).task
        return self._tasks.setdefault(task.identity, len(self._tasks)) if given is None else given

    def next_rollouts(self, task_index: int, times: int) -> range:
        first = self._next.get(task_index, 0)
        self._next[task_index] = first + times
        return range(first, first + times)


@dataclass(slots=True)
class _Problems:
    """What is wrong with the tasks, by kind."""

    with_input: list[int] = field(default_factory=list)
    unfilled: MissingFieldError | None = None
    without_params: list[int] = field(default_factory=list)
    odd_index: list[int] = field(default_factory=list)
    without_agent: list[int] = field(default_factory=list)
    without_route: list[int] = field(default_factory=list)
    changed_episodes: list[int] = field(default_factory=list)
    unlisted: set[str] = field(default_factory=set)
    kept: Counter[str] = field(default_factory=Counter)
    agents: set[str] = field(default_factory=set)

    def report(self, spec: PlanSpec) -> None:
        """Raise the most serious problem, naming all rows that have it; warn about what is merely odd."""
        if self.with_input:
            raise conflict(self.with_input)
        if self.unfilled:
            raise self.unfilled
        if self.without_params:
            raise _bad_rows(
                self.without_params,
                f"have no {RESPONSES_CREATE_PARAMS_KEY_NAME} object",
                hint=f"each row needs {RESPONSES_CREATE_PARAMS_KEY_NAME}: {{input: …}}; for rows with only the fields "
                "of a prompt, name a template with +prompt_config=…",
            )
        if self.odd_index:
            raise _bad_rows(self.odd_index, f"have a {TASK_INDEX_KEY_NAME} that is not an integer")
        if self.without_agent:
            raise _bad_rows(
                self.without_agent,
                f"name no agent in {AGENT_REF_KEY_NAME}",
                hint="give +agent_name=…, or put agent_ref: {name: …} into these rows",
            )
        self._check_routes(spec)
        if not isinstance(spec.repeats, int):
            self._check_repeats(spec.repeats)
        if self.kept:
            others = ", ".join(f"{name} ({count})" for name, count in self.kept.most_common())
            logger.info("agent_name is %s; rows that name another agent keep it: %s", spec.agent, others)

    def _check_routes(self, spec: PlanSpec) -> None:
        if self.without_route:
            raise _bad_rows(
                self.without_route,
                f"have no environment server; {ENVIRONMENT_SERVER_ROUTES} has those of {sorted(spec.routing.tasksets)}",
                hint=f"add the task sets: '+{ENVIRONMENT_SERVER_ROUTES}={{<taskset>: <instance>}}'",
            )
        if self.changed_episodes:
            raise _bad_rows(
                self.changed_episodes,
                "are whole tasks, whose requests only their environment server knows",
                hint="leave out responses_create_params, prompt_config, skills and num_repeats_add_seed",
            )

    def _check_repeats(self, repeats: Mapping[str, int]) -> None:
        listed = sorted(set(repeats) - {DEFAULT_REPEATS_KEY})
        if self.unlisted:
            raise TaskError(
                f"num_repeats has no number for the agents {sorted(self.unlisted)} and no {DEFAULT_REPEATS_KEY!r}; "
                f"it lists {listed}",
                hint=f"add these agents to num_repeats, or a {DEFAULT_REPEATS_KEY} for all others",
            )
        if absent := sorted(set(listed) - self.agents):
            warnings.warn(f"num_repeats lists agents that no row names: {absent}", UserWarning, stacklevel=4)


def _bad_rows(numbers: list[int], what: str, hint: str | None = None) -> TaskError:
    return TaskError(f"rows {numbers} (counted from 0) {what}", hint=hint)


def _prepare(task: Task, spec: PlanSpec, problems: _Problems) -> Row | None:
    """The row that all rollouts of a task have in common, or None if the task can't be planned."""
    row = dict(task.fields)
    if is_materialized_task_row(row):
        return _prepare_episode(row, task.number, spec, problems)
    if spec.routing.only_tasksets:
        problems.without_route.append(task.number)
        return None
    if spec.prompt is not None:
        if has_input(row):
            problems.with_input.append(task.number)
            return None
        try:
            row = with_prompt(row, render(spec.prompt, row))
        except MissingFieldError as error:
            problems.unfilled = problems.unfilled or error
            return None
    _name_agent(row, spec, problems)
    if (suspects := _complaints(row, problems)) is not None:
        suspects.append(task.number)
        return None
    if spec.overrides:
        row[RESPONSES_CREATE_PARAMS_KEY_NAME] = {**row[RESPONSES_CREATE_PARAMS_KEY_NAME], **spec.overrides}
    if spec.skills_ref is not None:
        row[SKILLS_REF_KEY_NAME] = spec.skills_ref
    return row


def _name_agent(row: Row, spec: PlanSpec, problems: _Problems) -> None:
    """Fill in the agent of a row that names none; a row that names one keeps it, whatever the command says."""
    if AGENT_REF_KEY_NAME in row:
        named = Record(row).agent
        if spec.agent and named and named != spec.agent:
            problems.kept[named] += 1
        return
    if agent := spec.agent or spec.routing.sources.get(Record(row).source or "") or spec.default_agent:
        row[AGENT_REF_KEY_NAME] = {"name": agent}


def _prepare_episode(row: Row, number: int, spec: PlanSpec, problems: _Problems) -> Row | None:
    """The row of a whole task, which belongs to the agent of the environment server that runs its task set."""
    server = spec.routing.tasksets.get(str(row["task_id"].get("taskset")))
    if server is None:
        problems.without_route.append(number)
        return None
    if spec.overrides or spec.prompt is not None or spec.skills_ref is not None or spec.seeded:
        problems.changed_episodes.append(number)
        return None
    return {**row, AGENT_REF_KEY_NAME: {"name": spec.routing.agents[server]}}


def _complaints(row: Row, problems: _Problems) -> list[int] | None:
    """The list of problems to which a row belongs because of what it lacks."""
    record = Record(row)
    if record.agent is None:
        return problems.without_agent
    if not isinstance(row.get(RESPONSES_CREATE_PARAMS_KEY_NAME), dict):
        return problems.without_params
    try:
        _ = record.task
    except RolloutFormatError:
        return problems.odd_index
    return None


def _repeat(row: Row, rollout: int, spec: PlanSpec, number: int) -> Row:
    repeat = {**row, ROLLOUT_INDEX_KEY_NAME: rollout}
    if spec.seeded:
        params = row[RESPONSES_CREATE_PARAMS_KEY_NAME]
        repeat[RESPONSES_CREATE_PARAMS_KEY_NAME] = _seeded(params, seed=rollout, number=number)
    return repeat


def _seeded(params: Mapping[str, Any], *, seed: int, number: int) -> dict[str, Any]:
    """Parameters with a seed where model servers look for parameters that the API does not have."""
    metadata = params.get("metadata") or {}
    try:
        extra = {**json.loads(metadata.get("extra_body") or "{}"), "seed": seed}
    except (ValueError, TypeError) as error:
        raise TaskError(f"row {number} (counted from 0): metadata.extra_body is not a JSON object: {error}") from None
    return {**params, "metadata": {**metadata, "extra_body": json.dumps(extra)}}


@dataclass(frozen=True, slots=True)
class PlanSource:
    """A task file, read again each time."""

    path: str  # as given
    limit: int | None
    spec: PlanSpec

    def rows(self) -> Iterator[Row]:
        return plan_rollouts(read_tasks(find_input(self.path), self.limit), self.spec)

    @property
    def request(self) -> Request:
        """What the plan was made from, to recognise the same request later."""
        spec = self.spec
        repeats = spec.repeats if isinstance(spec.repeats, int) else dict(spec.repeats)
        settings = {
            "limit": self.limit or None,
            "agent_name": spec.agent or spec.default_agent,
            "num_repeats": repeats,
            "num_repeats_add_seed": spec.seeded,
            "responses_create_params": dict(spec.overrides),
            "prompt": spec.prompt.model_dump() if spec.prompt else None,
            "skills": spec.skills_ref["hash"] if spec.skills_ref else None,
        }
        if spec.shard is not None:
            settings["shard"] = str(spec.shard)
        return Request(settings, find_readable(self.path), self.limit)


def find_input(path: str) -> Path:
    """The task file that a path refers to."""
    candidates = readable_candidates(path)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if folder := next((candidate for candidate in candidates if candidate.is_dir()), None):
        raise ConfigError(f"the input {folder} is a folder", hint="name a file of JSON lines, one task each")
    if pipe := next((candidate for candidate in candidates if candidate.exists()), None):
        raise ConfigError(
            f"the input {pipe} is not a regular file",
            hint="save the tasks to a file first: a run that is resumed reads them again",
        )
    raise ConfigPathNotFoundError(
        f"the input file {path!r} does not exist (looked for {', '.join(map(str, candidates))})",
        hint="correct +input_jsonl_fpath=… (or --input …)",
    )


def resolve_overrides(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the ``${…}`` in them replaced; names refer to their siblings."""
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(dict(params)), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"responses_create_params can't be resolved: {error}") from None
    assert isinstance(resolved, dict)
    return {str(name): value for name, value in resolved.items()}
