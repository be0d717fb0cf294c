"""Scores saved rollouts again: today's verifier on the saved transcript, without the model that wrote it.

A new run whose attempts are calls of ``/seed_session`` and ``/verify`` instead of ``/run``: it has a plan, failures
with their classes, metrics, and can be resumed like any other. What a verifier keeps in its session can be rebuilt by
repeating the recorded tool calls.

Only the positions of saved rollouts are kept in memory. A line that can't be read, or a rollout that occurs twice, is
counted and left out.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.io.compressed import open_raw_lines, read_span
from nemo_gym.io.files import RunFiles
from nemo_gym.io.json import encode
from nemo_gym.rollouts.classify import (
    expected_errors,
    failed,
    failure_of_status,
    outcome_of_error,
    outcome_of_reply,
)
from nemo_gym.rollouts.run import Aggregate, CollectionRun, RunControl, run_collection
from nemo_gym.rollouts.store.history import AttemptPolicy, packed
from nemo_gym.rollouts.store.outcome import Failure, Outcome, PlannedRollout
from nemo_gym.rollouts.store.output import Request
from nemo_gym.rollouts.store.rollout_store import ResumeMode
from nemo_gym.rollouts.store.saved_lines import key_in_line, read_lines
from nemo_gym.rollouts.tally import Summary
from nemo_gym.schemas.record import REWARD, Record, Row
from nemo_gym.schemas.rows import RESPONSE_KEY_NAME, FailureClass, RolloutKey
from nemo_gym.servers.http.deadlines import Deadlines, attempt_deadline
from nemo_gym.servers.middleware.rollout_scope import mark_rollout
from nemo_gym.servers.server_client import GymClient

logger = logging.getLogger(__name__)


class SavedRollouts:
    """The rollouts of one file; with ``failed_as``, only those whose attempts ended with that failure.

    Failed attempts are looked for in the file of failures beside the rollouts, and in the rollouts if there is none.
    ``inputs`` is the file with the rows that they were made from, if it is not beside them.
    """

    def __init__(self, path: Path, *, inputs: Path | None = None, failed_as: str | None = None) -> None:
        for given, name in ((path, "input"), (inputs, "inputs")):
            if given is not None and not given.is_file():
                raise ConfigPathNotFoundError(f"{given}: no such file", hint=f"correct +{name}=<file>")
        self.path = path
        self.left_out = 0
        self._plan = inputs or RunFiles.of(path).plan
        self._positions: dict[int, int] = {}
        failures = RunFiles.of(path).failures
        source = failures if failed_as and failures.is_file() else path
        self._file = open_raw_lines(source)
        if failed_as:
            self._find_failed(source, failed_as)
        else:
            self._find_all()

    def _find_all(self) -> None:
        for line in read_lines(self.path):
            key = key_in_line(line.text)
            if key is not None and packed(key) not in self._positions:
                self._positions[packed(key)] = line.start
            else:
                self.left_out += bool(line.text.strip())
        if self.left_out:
            logger.warning("%s: %d lines are not rollouts, or repeat one, and are left out", self.path, self.left_out)

    def _find_failed(self, source: Path, kind: str) -> None:
        """Keep the last such attempt of each rollout that was not completed after all."""
        for line in read_lines(source):
            key = key_in_line(line.text)
            if key is not None and Record.parse(line.text).failure == kind:
                self._positions[packed(key)] = line.start
        if source != self.path:
            for line in read_lines(self.path):
                key = key_in_line(line.text)
                if key is not None:
                    self._positions.pop(packed(key), None)

    def __len__(self) -> int:
        return len(self._positions)

    def record(self, key: RolloutKey) -> dict[str, Any]:
        """What was saved."""
        return Record.parse(self._line(self._positions[packed(key)])).fields

    def rows(self) -> Iterator[Row]:
        """What each rollout was made from: its row in the plan or, where there is none, the fields of the record."""
        planned: set[int] = set()
        for line in read_lines(self._plan) if self._plan.is_file() else ():
            key = key_in_line(line.text)
            if key is not None and packed(key) in self._positions and packed(key) not in planned:
                planned.add(packed(key))
                yield Record.parse(line.text).fields
        for number, position in self._positions.items():
            if number not in planned:
                fields = Record.parse(self._line(position)).fields
                yield {name: value for name, value in fields.items() if name not in (RESPONSE_KEY_NAME, REWARD)}

    def agents(self) -> list[str]:
        names = {record.agent for record in map(Record, self.rows()) if record.key is not None}
        return sorted(name for name in names if name)

    def close(self) -> None:
        self._file.close()

    def _line(self, position: int) -> bytes:
        chunks, size = list[bytes](), 1 << 16
        while chunk := read_span(self._file, size, position):
            head, end, _ = chunk.partition(b"\n")
            chunks.append(head)
            if end:
                break
            position += len(chunk)
            size *= 2
        return b"".join(chunks)


SEED_PATH: Final = "/seed_session"
VERIFY_PATH: Final = "/verify"
_CLASS_OF_PATH: Final = {SEED_PATH: FailureClass.TOOL_ERROR, VERIFY_PATH: FailureClass.VERIFIER_ERROR}


class _RefusedError(Exception):
    """A server replied with an error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(slots=True)
class ToolReplay:
    """How the recorded tool calls went when they were made again."""

    calls: int = 0
    different: int = 0


@dataclass(slots=True, kw_only=True)
class VerifyAttempt:
    """Scores one rollout. Every way in which that can go wrong becomes an outcome."""

    client: GymClient
    saved: SavedRollouts
    verifiers: Mapping[str, str]  # the resources server of each agent
    timeout_s: float | None = None
    tools: ToolReplay | None = None  # None: tool calls are not made again
    marks: bool = False
    deadlines: Deadlines = field(default_factory=Deadlines)

    async def __call__(self, planned: PlannedRollout) -> Outcome:
        if self.marks:
            mark_rollout(*planned.key, planned.attempt)
        started, limit = perf_counter(), self.deadlines.within(self.timeout_s, self.client.waited)
        try:
            with limit:
                attempt_deadline.set(limit)  # for the rest of this task, which is of this attempt alone
                reply = await self._verify(planned)
                body = await reply.read()
        except _RefusedError as refused:
            return failed(planned, refused.failure, perf_counter() - started)
        except expected_errors() as error:
            seconds = perf_counter() - started
            if limit.has_expired:
                late = Failure.of(FailureClass.TIMEOUT, f"no verdict within {self.timeout_s:g} s")
                return failed(planned, late, seconds)
            return outcome_of_error(planned, error, seconds)
        return outcome_of_reply(planned, reply.status, reply.headers, body, perf_counter() - started)

    async def _verify(self, planned: PlannedRollout) -> Any:
        response = self.saved.record(planned.key).get(RESPONSE_KEY_NAME)
        if not isinstance(response, dict):
            message = "the saved rollout has no response that could be verified"
            raise _RefusedError(Failure(kind=FailureClass.INVALID_RESPONSE, message=message, terminal=True))
        server = self.verifiers[planned.agent]
        seeded = await self._post(server, SEED_PATH, encode(planned.row), None)
        cookies = seeded.cookies
        if self.tools is not None:
            cookies = await self._repeat_calls(server, response.get("output"), cookies, self.tools)
        return await self._post(server, VERIFY_PATH, encode({**planned.row, RESPONSE_KEY_NAME: response}), cookies)

    async def _post(self, server: str, path: str, body: bytes, cookies: Any) -> Any:
        reply = await self.client.post(server_name=server, url_path=path, json=body, cookies=cookies)
        if reply.status >= 400:
            failure = failure_of_status(reply.status, reply.headers, await reply.read())
            # No agent takes part here, so the class names the server that really failed.
            if failure.kind == FailureClass.AGENT_ERROR:
                failure = replace(failure, kind=_CLASS_OF_PATH[path], transient=not failure.terminal)
            raise _RefusedError(failure)
        return reply

    async def _repeat_calls(self, server: str, output: Any, cookies: Any, replay: ToolReplay) -> Any:
        items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
        results = {i.get("call_id"): i.get("output") for i in items if i.get("type") == "function_call_output"}
        for call in items:
            if call.get("type") != "function_call" or call.get("call_id") not in results:
                continue  # a call without a recorded result was never carried out
            with suppress(ValueError):  # nor was one whose arguments are not JSON
                arguments = json.loads(call.get("arguments") or "")
                reply = await self.client.post(
                    server_name=server, url_path=f"/{call.get('name')}", json=arguments, cookies=cookies
                )
                replay.calls += 1
                replay.different += await reply.text() != results[call["call_id"]]
                cookies = reply.cookies
        return cookies


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverification:
    """What to score again, and where to save it. ``append`` adds to what the output already holds."""

    saved: SavedRollouts
    output: Path
    resume: bool = False
    append: bool = False
    overwrite: bool = True  # whether a fresh run may move an existing output aside
    retries: AttemptPolicy = field(default_factory=AttemptPolicy)


async def reverify_owed(
    wanted: Reverification, attempt: VerifyAttempt, control: RunControl, aggregate: Aggregate | None = None
) -> Summary:
    """Score everything that is owed and save it as a separate run."""
    if RunFiles.of(wanted.output).plan.absolute() == RunFiles.of(wanted.saved.path).plan.absolute():
        raise ConfigError(
            f"{wanted.output} belongs to the rollouts to verify, and writing it would replace them",
            hint="choose another +output=…",
        )
    run = CollectionRun(
        output=wanted.output,
        rows=wanted.saved.rows,
        request=Request({"verified_again": True, "replay_tools": attempt.tools is not None}, wanted.saved.path),
        resume=wanted.resume or wanted.append,
        resume_mode=ResumeMode.EXTEND if wanted.append else ResumeMode.STRICT,
        overwrite=wanted.overwrite,
        retries=wanted.retries,
        agents=set(attempt.verifiers),
    )
    return await run_collection(run, attempt, control, aggregate)
