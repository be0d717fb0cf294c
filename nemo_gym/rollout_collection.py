"""Front door: collects rollouts. It turns the configuration into values; the work is done in ``nemo_gym.rollouts``.

``RolloutCollectionHelper`` may be subclassed. A method that a subclass overrides is called as documented; otherwise
rows and results are streamed instead of being held in lists.

The code that computes metrics is imported only when needed, because importing numpy takes longer than all the rest.
"""

import asyncio
import copy
import json
import logging
import sys
import warnings
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from nemo_gym.capture.trajectories import attach_trajectory, build_trajectory, trajectory_identity
from nemo_gym.config.environments import Routing
from nemo_gym.config.secrets import mask_secrets
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import get_global_config_dict
from nemo_gym.io.files import RunFiles
from nemo_gym.io.json import decode
from nemo_gym.prompt import load_prompt_config
from nemo_gym.rollout_aggregation import RolloutAggregationConfig, RolloutAggregationHelper, connect
from nemo_gym.rollout_parameters import (
    DEFAULT_MAX_ROLLOUT_ATTEMPTS,
    E2ERolloutCollectionConfig,
    RolloutCollectionConfig,
    SharedRolloutCollectionConfig,
    max_rollout_attempts,
)
from nemo_gym.rollouts.agents import RUN_PATH, AgentClient, Agents, agents_of
from nemo_gym.rollouts.attempt import AgentAttempt, as_completed, attempt_through
from nemo_gym.rollouts.concurrency import limit_for
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.memory_limit import MemoryLimit
from nemo_gym.rollouts.options import DEFAULT_WINDOW
from nemo_gym.rollouts.plan import PlanSource, PlanSpec, resolve_overrides
from nemo_gym.rollouts.run import CollectionRun, RunControl, RunListener, StopSwitch, run_collection
from nemo_gym.rollouts.store.history import AttemptPolicy, read_saved
from nemo_gym.rollouts.store.outcome import Completed, Outcome
from nemo_gym.rollouts.store.rollout_store import RolloutStore
from nemo_gym.rollouts.store.saved_lines import expand_globs
from nemo_gym.rollouts.tally import AgentMetrics, Budget, Summary
from nemo_gym.rollouts.tasks import Shard
from nemo_gym.schemas.record import Record, Row, read_records
from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_NO_PERSIST_KEY,
    NG_TERMINAL_KEY,
    RolloutKey,
)
from nemo_gym.servers.http.client import get_response_json, raise_for_status
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.server_client import GymClient
from nemo_gym.skills import load_skill_directory
from nemo_gym.telemetry.listeners import telemetry
from nemo_gym.telemetry.trackers import TrackedRun
from nemo_gym.telemetry.wandb_tracker import default_trackers

logger = logging.getLogger(__name__)


DEBUG_KEY: Final = "global_aiohttp_client_request_debug"
Parameters = TypeVar("Parameters", bound=RolloutCollectionConfig)

__all__ = [
    "NG_FAILURE_CLASS_KEY",
    "NG_NO_PERSIST_KEY",
    "NG_TERMINAL_KEY",
    "E2ERolloutCollectionConfig",
    "RolloutAggregationConfig",
    "RolloutAggregationHelper",
    "RolloutCollectionConfig",
    "RolloutCollectionHelper",
    "SharedRolloutCollectionConfig",
]


class IncompleteResults(RunListener):
    """Collects the outcomes of rollouts that did not complete, which are not in the rollout file."""

    def __init__(self) -> None:
        self._lines: dict[RolloutKey, bytes] = {}

    def outcomes_saved(self, outcomes: Iterable[Outcome]) -> None:
        """Note those that did not complete."""
        for outcome in outcomes:
            # A rollout that failed may complete in a later attempt; then it is in the rollout file.
            if isinstance(outcome, Completed):
                self._lines.pop(outcome.planned.key, None)
            else:
                self._lines[outcome.planned.key] = outcome.line

    def records(self) -> list[dict[str, Any]]:
        """The last result of each, without the number of the attempt, which is internal."""
        records = [decode(line) for line in self._lines.values()]
        return [{name: value for name, value in record.items() if name != ATTEMPT_KEY_NAME} for record in records]


# ---- collecting ------------------------------------------------------------------------------------------------------
class RolloutCollectionHelper(BaseModel):
    """Collects the rollouts that a configuration asks for."""

    async def run_from_config(self, config: RolloutCollectionConfig) -> list[Row]:
        """Collect, and return all results sorted by key, including earlier, failed and unsaved ones.

        Unlike the command, this needs no ``overwrite`` to start from scratch: it moves an existing output aside.
        """
        incomplete = IncompleteResults()
        try:
            summary = await self.collect(with_default_trackers(config), listener=incomplete, lenient=True)
        finally:
            await close_http_client()  # a script's event loop may end here, and connections must not outlive it
        logger.info("%s", summary.text())
        completed = [line.record for line in read_records(summary.files.rollouts)]
        results = sorted([*completed, *map(Record, incomplete.records())], key=Record.sort_key)
        return [result.with_prompts() for result in results]

    async def collect(
        self,
        config: RolloutCollectionConfig,
        *,
        client: AgentClient | None = None,
        attempt: Attempt | None = None,
        stop: StopSwitch | None = None,
        listener: RunListener | None = None,
        lenient: bool = False,
    ) -> Summary:
        """Collect, and return only a summary; this works for collections of any size.

        Without a client the servers are found through the head server; without ``attempt`` rollouts run through the
        client. ``lenient`` accepts an input without tasks, and an existing output, which is moved aside.
        """
        gym = client or self.setup_server_client()
        agents = agents_of(gym)
        source = _source(config, agents)
        run = CollectionRun(
            output=config.output,
            rows=lambda: self._rows(config, source),
            request=replace(source.request, models=agents.models),
            owed=(lambda: self._load_from_cache(config)[0]) if self._replaces("_load_from_cache") else None,
            resume=config.resume_from_cache,
            resume_mode=config.resume_mode,
            overwrite=config.overwrite or lenient,
            may_be_empty=lenient or config.shard is not None,  # there may be more parts than tasks
            retries=_retries(config),
            agents=agents.names,
        )
        aggregate = None if config.disable_aggregation else lambda store: self._aggregate(store, gym)
        if attempt is None:
            attempt = self._attempt(gym, config)
        async with telemetry(_tracked(config)) as listeners:
            control = _control(config, agents, stop, [*listeners, *([listener] if listener is not None else [])])
            return await run_collection(run, attempt, control, aggregate)

    def setup_server_client(self, head_server_config: BaseServerConfig | None = None) -> GymClient:
        """A client for the servers that run elsewhere, found through their head server."""
        return connect(head_server_config)

    def run_examples(
        self,
        examples: Sequence[Row],
        head_server_config: BaseServerConfig | None = None,
        semaphore: asyncio.Semaphore | None = None,
    ) -> Iterator[Awaitable[tuple[Row, Row]]]:
        """Run rows and yield an awaitable for each, in order of completion. Errors of a request are raised."""
        client = self.setup_server_client(head_server_config)

        async def run(row: Row) -> Row:
            response = await client.post(server_name=Record(row).agent or "", url_path=RUN_PATH, json=row)
            if not response.ok and client.global_config_dict.get(DEBUG_KEY):
                logger.warning("status %d: %s", response.status, json.dumps(Record(row).summary(), sort_keys=True))
            await raise_for_status(response)
            result: Row = await get_response_json(response)
            return result

        return as_completed(examples, run, semaphore)

    def _preprocess_rows_from_config(self, config: RolloutCollectionConfig) -> list[Row]:
        """The whole plan, in which no two rows share an object."""
        return [copy.deepcopy(row) for row in _source(config).rows()]

    def _load_from_cache(
        self, config: RolloutCollectionConfig
    ) -> tuple[list[Row], list[Row], list[Row], list[list[bytes]]]:
        """The rows still to run; then, for each result on disk, its row, the result itself, and its text."""
        saved = read_saved(RunFiles.of(config.output), _retries(config))
        return saved.owed, saved.rows, saved.results, [[text] for text in saved.texts]

    async def _call_aggregate_metrics(
        self, results: Sequence[Row], rows: Sequence[Row], output_fpath: Path
    ) -> Path | None:
        """Have each agent compute the metrics of its results; a result belongs to the agent of its row."""
        from nemo_gym.rollouts.run_metrics import ask_for_metrics, by_agent, write_metrics

        ref = AGENT_REF_KEY_NAME
        groups = by_agent(Record({**result, ref: row.get(ref)}) for row, result in zip(rows, results, strict=True))
        metrics = await ask_for_metrics(groups, self.setup_server_client()) if groups else []
        if not metrics:
            return None
        write_metrics(path := RunFiles.of(Path(output_fpath)).metrics, metrics)
        return path

    # ---- overridden methods and their defaults -----------------------------------------------------------------------
    def _replaces(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(RolloutCollectionHelper, method)

    def _rows(self, config: RolloutCollectionConfig, source: PlanSource) -> Iterable[Row]:
        replaced = self._replaces("_preprocess_rows_from_config")
        return self._preprocess_rows_from_config(config) if replaced else source.rows()

    def _attempt(self, client: AgentClient, config: RolloutCollectionConfig) -> Attempt:
        if self._replaces("run_examples"):
            return attempt_through(self.run_examples, timeout_s=config.rollout_timeout_s)
        return AgentAttempt(client, timeout_s=config.rollout_timeout_s, patience_s=config.patience_s)

    async def _aggregate(self, store: RolloutStore, client: AgentClient) -> Sequence[AgentMetrics]:
        if not self._replaces("_call_aggregate_metrics"):
            from nemo_gym.rollouts.run_metrics import aggregate_run

            return await aggregate_run(store.files, client)
        records = sorted((line.record for line in read_records(store.files.rollouts)), key=Record.sort_key)
        results = [record.fields for record in records]
        await self._call_aggregate_metrics(results, results, store.files.rollouts)
        return ()


def with_default_trackers(config: Parameters) -> Parameters:
    """The same parameters; if they name no trackers, with those that the configuration of this process asks for."""
    if config.trackers is not None:
        return config
    return config.model_copy(update={"trackers": default_trackers(get_global_config_dict)})


# ---- from configuration to values ------------------------------------------------------------------------------------
def _source(config: RolloutCollectionConfig, agents: Agents | None = None) -> PlanSource:
    routing = agents.routing if agents is not None else Routing()
    spec = PlanSpec(
        # An environment server may be named too: its rollouts are those of its agent.
        agent=routing.agents.get(config.agent_name or "", config.agent_name),
        routing=routing,
        default_agent=_the_only(agents) if agents is not None else None,
        repeats=config.num_repeats,
        overrides=resolve_overrides(config.responses_create_params),
        prompt=load_prompt_config(config.prompt_config) if config.prompt_config else None,
        skills_ref=load_skill_directory(config.skills.path).model_dump() if config.skills else None,
        seeded=config.num_repeats_add_seed,
        shard=Shard.parse(config.shard) if config.shard else None,
    )
    return PlanSource(config.input_jsonl_fpath, config.limit, spec)


def _tracked(config: RolloutCollectionConfig) -> TrackedRun:
    return TrackedRun(
        files=RunFiles.of(config.output),
        settings=mask_secrets(config.model_dump(mode="json")),
        options=config,
        configuration=get_global_config_dict,
        uploads_rollouts=config.upload_rollouts_to_wandb and config.upload_rollouts,
    )


def _control(
    config: RolloutCollectionConfig, agents: Agents, stop: StopSwitch | None, listeners: Sequence[RunListener]
) -> RunControl:
    limit = limit_for(config.num_samples_in_parallel, window=DEFAULT_WINDOW)
    is_chosen = isinstance(config.num_samples_in_parallel, int) and config.num_samples_in_parallel > 0
    return RunControl(
        limit=limit if is_chosen else MemoryLimit(limit),
        max_failures=config.max_failures,
        budget=_budget(config, agents),
        prices=agents.prices,
        drain_s=config.drain_timeout_s,
        patience_s=config.patience_s,
        token_continuity=config.token_continuity,
        steps=config.steps,
        server_usage=agents.processor_usage,
        trace_run=config.trace_run,
        stop=stop or StopSwitch(drain_s=config.drain_timeout_s),
        listeners=listeners,
        stream=sys.stderr,
    )


def _the_only(agents: Agents) -> str | None:
    """The agent of a Gym that has just one, so that it need not be named."""
    return next(iter(agents.names)) if agents.names is not None and len(agents.names) == 1 else None


def _budget(config: RolloutCollectionConfig, agents: Agents) -> Budget:
    if config.budget_usd is not None and not agents.prices:
        raise ConfigError(
            "budget_usd is set, but no agent's model has prices",
            hint="add prices: {input: 0.15, output: 0.60} (USD per million tokens) to the model server's settings",
        )
    seconds = config.budget_minutes * 60 if config.budget_minutes is not None else None
    return Budget(config.budget_tokens, config.budget_usd, seconds)


def _retries(config: RolloutCollectionConfig) -> AttemptPolicy:
    return AttemptPolicy(max_rollout_attempts(), frozenset(config.retry_failed))


# ---- names that others import ----------------------------------------------------------------------------------------
def _expand_input_glob(input_glob: str) -> list[str]:
    """The files that comma-separated patterns match."""
    return expand_globs(input_glob)


_attach_trajectory_record = attach_trajectory
_build_trajectory_record = build_trajectory
_trajectory_identity = trajectory_identity
_DEFAULT_MAX_ROLLOUT_ATTEMPTS = DEFAULT_MAX_ROLLOUT_ATTEMPTS
_get_max_rollout_attempts = get_max_rollout_attempts = max_rollout_attempts


def _rollout_request_debug_summary(row: Row) -> Row:
    """What may be logged about a row."""
    return Record(row).summary()


def loads_jsonl_line(line: bytes | str, path: str | Path, line_number: int) -> Row:
    """The row on a line; an error names the file and the line."""
    return Record.parse(line, Path(path), line_number).fields


def _failures_path_for(output_fpath: Path) -> Path:
    """The file for failed attempts that belongs to an output path."""
    return RunFiles.of(output_fpath).failures


def __getattr__(name: str) -> Any:
    """Programs written for older versions import the commands from here."""
    if name not in {"collect_rollouts", "aggregate_rollouts"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is the command ng_{name} now", DeprecationWarning, stacklevel=2)
    return getattr(import_module("nemo_gym.cli"), name)
