"""One attempt of one rollout: a call of the agent's ``/run``, in this process or over the network."""

import asyncio
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Protocol

from nemo_gym.rollouts.classify import expected_errors, failed, outcome_of_answer, outcome_of_error
from nemo_gym.rollouts.outcome import TRANSIENT, Failure, FailureClass, Outcome
from nemo_gym.rollouts.planned import Planned
from nemo_gym.servers.client import GymClient
from nemo_gym.servers.rollout_scope import mark_rollout, wants_marks

RUN_PATH = "/run"


class Answer(Protocol):
    """What a call returns, as far as it is looked at here."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, whatever the case of their names."""
        ...

    async def read(self) -> bytes:
        """The whole body."""
        ...


class AgentClient(Protocol):
    """Reaches agents by name: a ``ServerClient``, or anything that can do this one thing."""

    async def post(self, *, server_name: str, url_path: str, json: Any) -> Any:
        """POST a JSON body; returns an ``Answer``."""
        ...


class AgentAttempt:
    """Runs rollouts by calling agents. Every way in which a call can go wrong becomes an outcome."""

    def __init__(self, client: AgentClient, *, timeout_s: float | None = None) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._takes_text = isinstance(client, GymClient)  # others may want to look into the row
        self._marks = wants_marks(getattr(client, "global_config_dict", None))

    async def __call__(self, planned: Planned) -> Outcome:
        """Run one rollout."""
        if self._marks:
            mark_rollout(*planned.key, planned.attempt)
        if self._timeout_s is None:
            return await self._run(planned)
        started, patience = perf_counter(), asyncio.timeout(self._timeout_s)
        try:
            async with patience:
                return await self._run(planned)
        except TimeoutError:
            return failed(planned, _timeout(self._timeout_s), perf_counter() - started)

    async def _run(self, planned: Planned) -> Outcome:
        started = perf_counter()
        row = planned.text if self._takes_text and planned.text else planned.row
        try:
            answer: Answer = await self._client.post(server_name=planned.agent, url_path=RUN_PATH, json=row)
            body = await answer.read()
        except expected_errors() as error:
            return outcome_of_error(planned, error, perf_counter() - started)
        headers = answer.headers if answer.status >= 400 else {}  # made when asked for, and rarely needed
        return outcome_of_answer(planned, answer.status, headers, body, perf_counter() - started)


def _timeout(seconds: float) -> Failure:
    kind = FailureClass.TIMEOUT
    return Failure(kind=kind, message=f"no answer within {seconds:g} s", transient=kind in TRANSIENT)
