"""The interface for trainers that drive a running Gym: whole groups as token sequences, and updates of its weights.

    policy = PolicyControl(gym.client, "policy_model", token)
    async for live in token_groups(tasks, gym.client, agent="my_agent", repeats=8, freshness=policy.freshness(1)):
        step(live.group)
        await policy.update({"model_path": "step-7.gguf"})

Nothing is written to disk. A rollout whose tokens do not form one sequence, or whose weights are too old, counts among
the failures of its group and never among its sequences.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.exporting.sft import UnfitError
from nemo_gym.rollouts.agents import AgentClient
from nemo_gym.rollouts.concurrency import Limit
from nemo_gym.rollouts.gates import Freshness, TokenContinuity
from nemo_gym.rollouts.options import DEFAULT_WINDOW
from nemo_gym.rollouts.store.history import DEFAULT_MAX_ATTEMPTS
from nemo_gym.rollouts.store.outcome import Completed, Failed, Outcome
from nemo_gym.rollouts.stream import stream_groups
from nemo_gym.schemas.record import Record
from nemo_gym.servers.http.client import get_response_json
from nemo_gym.servers.models.policy import PAUSE_PATH, RESUME_PATH, WEIGHTS_PATH, PolicyState
from nemo_gym.servers.server_client import GymClient
from nemo_gym.training.sequences import Group, TokenSequence, sequences_of


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """The rollouts of one task that can be used for training, and those that failed."""

    group: Group
    failures: list[Failed]


async def token_groups(
    tasks: Iterable[Mapping[str, Any]],
    client: AgentClient,
    *,
    agent: str | None = None,
    repeats: int = 1,
    limit: int | Limit = DEFAULT_WINDOW,
    timeout_s: float | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    freshness: Freshness | None = None,
) -> AsyncGenerator[LiveGroup, None]:
    """Run tasks and yield each group once its last rollout has ended.

    The parameters are those of ``stream_outcomes``. Rollouts whose tokens are not one sequence count as failed.
    """
    outcomes = stream_groups(
        tasks,
        client,
        agent=agent,
        repeats=repeats,
        limit=limit,
        timeout_s=timeout_s,
        max_attempts=max_attempts,
        token_continuity=TokenContinuity.FAIL,
        freshness=freshness,
    )
    async with aclosing(outcomes) as groups:  # leaving the loop early has to cancel what is still running
        async for group in groups:
            yield live_group(group)


def live_group(outcomes: Iterable[Outcome]) -> LiveGroup:
    """The outcomes of one task as sequences and failures."""
    ended = list(outcomes)
    sequences = [each for one in ended if isinstance(one, Completed) for each in _sequences(one)]
    failures = [one for one in ended if isinstance(one, Failed)]
    return LiveGroup(Group(ended[0].planned.key.task, sequences), failures)


def _sequences(outcome: Completed) -> list[TokenSequence]:
    try:
        return sequences_of(Record.parse(outcome.line), outcome.planned.key)
    except UnfitError as error:
        # Single broken rollouts have already been counted as failures, so this affects all of them: a missing setting.
        raise ConfigError(
            f"rollouts can't be trained on: one {error}",
            hint="set return_token_id_information: true on the model server",
        ) from error


class PolicyControl:
    """Controls the weights of a model server in a running Gym; needs its ``weights_token``."""

    def __init__(self, client: GymClient, server: str, token: str) -> None:
        self._client = client
        self._server = server
        self._headers = {"Authorization": f"Bearer {token}"}
        self.version = 0

    async def update(self, body: Mapping[str, Any]) -> int:
        """Send new weights (the body of the server's ``POST /weights``) and return their version."""
        return await self._call("POST", WEIGHTS_PATH, json=dict(body))

    async def pause(self, *, drain: bool = True) -> None:
        """Hold back new requests; with ``drain``, return once the running ones are done."""
        await self._call("POST", PAUSE_PATH, params={"drain": str(drain).lower()})

    async def resume(self) -> None:
        await self._call("POST", RESUME_PATH)

    async def refresh(self) -> int:
        """Ask the server for the version of its weights."""
        return await self._call("GET", WEIGHTS_PATH)

    def freshness(self, max_staleness: int) -> Freshness:
        """A limit that lets rollouts be at most that many versions behind."""
        return Freshness(lambda: self.version, max_staleness)

    async def _call(self, method: str, path: str, **options: Any) -> int:
        response = await self._client.request(self._server, path, method, headers=self._headers, **options)
        reply = await get_response_json(response)
        if response.status >= 400:
            detail = reply.get("detail", reply) if isinstance(reply, dict) else reply
            raise ConfigError(
                f"{self._server} refused {path} with status {response.status}: {detail}",
                hint=f"check model_path and weights_token of {self._server}",
            )
        self.version = PolicyState.model_validate(reply).version
        return self.version
