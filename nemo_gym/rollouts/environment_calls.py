"""Rollouts that an environment server runs instead of their agent: what is sent to it, and what its reply comes to.

A flat row is sent as it is. A materialized task is sent as an episode; its reply holds either a result, which is saved
with the id of its task, or a failure, which is recorded like that of an agent. Both are stamped with the server.
"""

from collections.abc import Mapping
from typing import Any, Final

from nemo_gym.config.environments import Routing
from nemo_gym.io.json import decode_exactly, encode_json
from nemo_gym.rollouts.store.outcome import PlannedRollout
from nemo_gym.schemas.episodes import is_materialized_task_row
from nemo_gym.schemas.record import BOOKKEEPING_PREFIX, Row
from nemo_gym.schemas.rows import (
    ENVIRONMENT_SERVER_STAMP_KEY_NAME,
    FAILURE_KIND_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_TERMINAL_KEY,
    RESULT_TYPE_KEY_NAME,
    TASK_ID_KEY_NAME,
    FailureClass,
)
from nemo_gym.servers.middleware.rollout_scope import rollout_id_of
from nemo_gym.servers.server_client import GymClient

ENVIRONMENT_SERVER_FAILED: Final = "environment_server_failed"
_RUN_PATH: Final = "/run"
# What only the collector writes into a row.
_RESERVED: Final = frozenset({"ng_trajectory", "ng_model_call_capture", "ng_perf"})


class EpisodeReply:
    """The reply of an environment server, in the form in which agents reply."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self._body = body

    async def read(self) -> bytes:
        return self._body


class EnvironmentCalls:
    """Calls the environment servers of a Gym."""

    def __init__(self, gym: GymClient, routing: Routing) -> None:
        self._gym = gym
        self._routing = routing

    def takes(self, planned: PlannedRollout) -> bool:
        """Whether an environment server runs this rollout."""
        return planned.agent in self._routing.doors or bool(self._routing.tasksets)

    async def run(self, planned: PlannedRollout) -> EpisodeReply:
        row = planned.row
        is_episode = is_materialized_task_row(row)
        server = self._routing.tasksets[row["task_id"]["taskset"]] if is_episode else self._door(planned.agent)
        reply = await self._gym.post(server, _RUN_PATH, json=encode_json(_episode(planned, row) if is_episode else row))
        body = await reply.read()
        if reply.status >= 400:
            return EpisodeReply(reply.status, reply.headers, body)
        try:
            record = decode_exactly(body)
        except (ValueError, RecursionError):  # which is classified like any other unreadable reply
            return EpisodeReply(reply.status, {}, body)
        if is_episode:
            record = _record_of_episode(record)
        if isinstance(record, dict) and server in self._routing.folders:
            stamps = {ENVIRONMENT_SERVER_STAMP_KEY_NAME: server, RESULT_TYPE_KEY_NAME: self._routing.folders[server]}
            record = {**record, **stamps}
        return EpisodeReply(reply.status, {}, encode_json(record))

    def _door(self, agent: str) -> str:
        return self._routing.doors.get(agent, agent)


def _episode(planned: PlannedRollout, row: Row) -> Row:
    name = {"rollout_id": rollout_id_of(*planned.key), "attempt": planned.attempt - 1}
    return {"episode_id": name, "task": {"task_id": row["task_id"], "task_input": row["task_input"]}}


def _record_of_episode(reply: Any) -> Any:
    """What an episode came to, in the fields of a rollout or of a failure."""
    if not isinstance(reply, dict) or (reply.get("result") is None) == (reply.get("failure") is None):
        return _failed("the reply has neither a result nor a failure", FailureClass.INVALID_RESPONSE)
    task, failure, result = reply.get("task_id"), reply.get("failure"), reply.get("result")
    if isinstance(failure, dict):
        return {**_failed(str(failure.get("failure_reason") or "")), **_details(failure), TASK_ID_KEY_NAME: task}
    if not isinstance(result, dict):
        return _failed("the result is not an object", FailureClass.INVALID_RESPONSE)
    if reserved := [name for name in result if name.startswith(BOOKKEEPING_PREFIX) or name in _RESERVED]:
        return _failed(f"the result holds {', '.join(reserved)}", FailureClass.INVALID_RESPONSE)
    return {**result, TASK_ID_KEY_NAME: task}


def _failed(reason: str, kind: str = ENVIRONMENT_SERVER_FAILED) -> Row:
    return {NG_FAILURE_CLASS_KEY: str(kind), "error_message": reason, "_ng_failure_message": reason}


def _details(failure: Row) -> Row:
    details = {
        NG_TERMINAL_KEY: failure.get("terminal") or None,
        "_ng_failure_stage": failure.get("stage"),
        "_ng_failure_partial_response": failure.get("partial_response"),
        FAILURE_KIND_KEY_NAME: failure.get("failure_kind"),
    }
    return {name: value for name, value in details.items() if value is not None}
