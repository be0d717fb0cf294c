"""Turns tasks into the plan: every rollout that is owed, in the order of the task file. Pure and lazy.

Equal lines are the same task. The rollouts of a task are numbered from 0 without gaps, across all lines that belong to
it, so a key ``(task, rollout)`` occurs once. What is wrong with the tasks is collected and raised after the last one,
all at once. So a plan may be used only after it has been read to its end.
"""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypedDict, cast

import msgspec
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.config.locate import find_readable, readable_candidates
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.io.json import decode
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
from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
    RolloutKey,
)

DEFAULT_REPEATS_KEY = "_default"
DEFAULT_MAX_ATTEMPTS = 3
Row = dict[str, Any]


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
        agent = row[AGENT_REF_KEY_NAME]["name"]
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
        given = as_index(task.fields.get(TASK_INDEX_KEY_NAME))
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
    unlisted: set[str] = field(default_factory=set)
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
        if not isinstance(spec.repeats, int):
            self._check_repeats(spec.repeats)

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
    if spec.prompt is not None:
        if has_input(row):
            problems.with_input.append(task.number)
            return None
        try:
            row = with_prompt(row, render(spec.prompt, row))
        except MissingFieldError as error:
            problems.unfilled = problems.unfilled or error
            return None
    if spec.agent:
        row.setdefault(AGENT_REF_KEY_NAME, {"name": spec.agent})
    if (suspects := _complaints(row, problems)) is not None:
        suspects.append(task.number)
        return None
    if spec.overrides:
        row[RESPONSES_CREATE_PARAMS_KEY_NAME] = {**row[RESPONSES_CREATE_PARAMS_KEY_NAME], **spec.overrides}
    if spec.skills_ref is not None:
        row[SKILLS_REF_KEY_NAME] = spec.skills_ref
    return row


def _complaints(row: Row, problems: _Problems) -> list[int] | None:
    """The list of problems to which a row belongs because of what it lacks."""
    if not agent_name(row):
        return problems.without_agent
    if not isinstance(row.get(RESPONSES_CREATE_PARAMS_KEY_NAME), dict):
        return problems.without_params
    index = row.get(TASK_INDEX_KEY_NAME)
    if index is not None and as_index(index) is None:
        return problems.odd_index
    return None


def as_index(value: Any) -> int | None:
    """The index that a task brings along, as a number or as the text of one; None if it has none."""
    if isinstance(value, str) and value.lstrip("-").isdecimal():
        return int(value)
    return value if type(value) is int else None


def agent_name(row: Mapping[str, Any]) -> str | None:
    """The agent that a row names, if it does."""
    ref = row.get(AGENT_REF_KEY_NAME)
    return ref.get("name") if isinstance(ref, dict) else None


class RowOutline(TypedDict, total=False):
    """The fields of a planned row that name the rollout and are repeated in its record."""

    _ng_task_index: Any
    _ng_rollout_index: Any
    agent_ref: Any
    skills_ref: Any


_outline = msgspec.json.Decoder(RowOutline).decode


def outline_of(line: bytes) -> Row:
    """The outline of a planned row, in a third of the time that the whole row takes; ``ValueError`` if it is none."""
    try:
        return cast("Row", _outline(line))
    except (ValueError, msgspec.MsgspecError, RecursionError):  # no object, or JSON that only Python writes
        row = decode(line)
    if not isinstance(row, dict):
        raise ValueError("a planned row must be a JSON object")  # noqa: TRY004 - of data
    return row


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


@dataclass(slots=True)
class PlannedRollout:
    """A rollout to run: its agent, what is sent, and which attempt it is.

    Treat it as frozen; it is not declared so only because creating a frozen object takes ten times as long.
    """

    key: RolloutKey
    agent: str
    outline: Row  # the row, or only its outline if its text is known
    attempt: int = 1  # counted over all runs of this output
    last_attempt: int = 1  # after this attempt the rollout is given up
    text: bytes | None = field(default=None, compare=False, repr=False)  # the row as JSON, if it is already known

    @property
    def row(self) -> Row:
        """The whole row. It is parsed only for those who look into it, since most calls send the text."""
        if self.text is None:
            return self.outline
        row: Row = decode(self.text)
        return row

    @classmethod
    def of(cls, row: Row, *, attempt: int = 1, last_attempt: int = 1) -> Self:
        """The rollout that a row of the plan describes."""
        key, agent = RolloutKey.of(row), agent_name(row)
        if key is None or not agent:
            raise ValueError(f"not a row of a plan: {summary_of(row)}")
        return cls(key, agent, row, attempt, last_attempt)

    @property
    def may_retry(self) -> bool:
        """Whether there is an attempt left after this one."""
        return self.attempt < self.last_attempt

    def again(self) -> Self:
        """The next attempt."""
        return replace(self, attempt=self.attempt + 1)


def summary_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What may be logged about a row: the rollout and its agent, never its content."""
    ref = row.get("agent_ref")
    named = {
        "_ng_task_index": row.get("_ng_task_index"),
        "_ng_rollout_index": row.get("_ng_rollout_index"),
        "agent_name": ref.get("name") if isinstance(ref, dict) else None,
    }
    return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class PlanSource:
    """A task file, read again each time."""

    path: str  # as given
    limit: int | None
    spec: PlanSpec

    def rows(self) -> Iterator[Row]:
        """The plan."""
        return plan_rollouts(read_tasks(find_input(self.path), self.limit), self.spec)

    @property
    def request(self) -> Request:
        """What the plan was made from, to recognise the same request later."""
        spec = self.spec
        repeats = spec.repeats if isinstance(spec.repeats, int) else dict(spec.repeats)
        settings = {
            "limit": self.limit or None,
            "agent_name": spec.agent,
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
