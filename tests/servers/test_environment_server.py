"""The life of an episode: slots, time limits, failures as data, and a clean-up that always runs."""

import asyncio
from typing import Any

import pytest
from fastapi.testclient import TestClient
from omegaconf import OmegaConf
from pydantic import Field

from nemo_gym.base_environment_server import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseEnvironmentServer,
    BaseEnvironmentServerConfig,
    CleanupContext,
    HandledEpisodeError,
)
from nemo_gym.episode_types import BaseEpisodeRequest, BaseEpisodeResponse, EpisodeFailure, EpisodeId, TaskId
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.server_utils import ServerClient

REQUEST = {
    "episode_id": {"rollout_id": "7-2", "attempt": 1},
    "task": {"task_id": {"taskset": "e:t", "task_id": "seven"}, "task_input": {}},
}


class Acting(BaseEnvironmentServer[BaseEpisodeRequest[dict[str, Any]], BaseEpisodeResponse[dict[str, Any]]]):
    ray_enabled = False
    request_model = BaseEpisodeRequest[dict[str, Any]]
    response_model = BaseEpisodeResponse[dict[str, Any]]

    done: list[str] = Field(default_factory=list)

    async def run(self, request: Any, cleanup: CleanupContext) -> Any:
        for name in ("first", "second"):
            cleanup.register_cleanup(name, lambda name=name: self.close(name))
        act = request.task.task_input.get("act")
        if act == "wait":
            await asyncio.sleep(60)
        if act == "handled":
            raise HandledEpisodeError(EpisodeFailure(failure_reason="no seed", terminal=False, stage="seed"))
        if act == "crash":
            raise KeyError("lost")
        other = {"task_id": TaskId(taskset="e:t", task_id="eight")} if act == "other" else {}
        named = {"episode_id": request.episode_id, "task_id": request.task.task_id, **other}
        return self.response_model(**named, result={"reward": 1.0, "rollout": current_rollout_id()})

    async def close(self, name: str) -> None:
        self.done.append(name)
        if name == "second":
            raise OSError("gone")

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return AggregateMetrics(agent_metrics={"n": len(body.verify_responses)})


def server(**settings: Any) -> Acting:
    own = {"cleanup_timeout_seconds": 5, "host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "acting"}
    head = BaseServerConfig(host="127.0.0.1", port=2)
    client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create({}))
    return Acting(config=BaseEnvironmentServerConfig(**own, **settings), server_client=client)


def ended(acting: Acting, act: str = "") -> dict[str, Any]:
    task = {**REQUEST["task"], "task_input": {"act": act}}
    reply = TestClient(acting.setup_webserver()).post("/run", json={**REQUEST, "task": task})
    assert reply.status_code == 200
    body: dict[str, Any] = reply.json()
    assert body["episode_id"] == REQUEST["episode_id"]
    return body


def test_an_episode_has_a_result_and_is_cleaned_up_in_reverse_order() -> None:
    acting = server()
    assert ended(acting)["result"] == {"reward": 1.0, "rollout": "7-2-a1"}
    assert acting.done == ["second", "first"]


@pytest.mark.parametrize(
    ("act", "failure"),
    [
        ("handled", {"failure_reason": "no seed", "terminal": False, "stage": "seed"}),
        ("crash", {"failure_reason": "KeyError: 'lost'", "terminal": True}),
    ],
)
def test_what_goes_wrong_is_part_of_the_reply(act: str, failure: dict[str, Any]) -> None:
    acting = server()
    assert ended(acting, act)["failure"] == failure
    assert acting.done == ["second", "first"]


def test_an_episode_may_not_take_too_long() -> None:
    acting = server(default_episode_timeout_seconds=0.05)
    failure = ended(acting, "wait")["failure"]
    assert failure["terminal"] is False
    assert "within 0.05 s" in failure["failure_reason"]
    assert acting.done == ["second", "first"]


async def test_an_episode_without_a_free_slot_is_not_admitted() -> None:
    acting = server(max_concurrent_episodes=1, queue_timeout_seconds=0.05)
    waiting = acting.request_model.model_validate(
        {**REQUEST, "task": {**REQUEST["task"], "task_input": {"act": "wait"}}}
    )
    first = asyncio.ensure_future(acting.run_request(waiting))
    await asyncio.sleep(0)
    refused = await acting.run_request(acting.request_model.model_validate(REQUEST))
    assert (refused.failure.stage, refused.failure.terminal) == ("admission", False)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert acting.done == ["second", "first"]


async def test_a_response_to_another_episode_is_an_error() -> None:
    body = {**REQUEST, "task": {**REQUEST["task"], "task_input": {"act": "other"}}}
    with pytest.raises(ValueError, match="another episode"):
        await server().run_request(Acting.request_model.model_validate(body))


async def test_what_is_closed_early_is_closed_once() -> None:
    acting, cleanup = server(), CleanupContext(EpisodeId(rollout_id="1-0"), 5)
    good = cleanup.register_cleanup("first", lambda: acting.close("first"))
    bad = cleanup.register_cleanup("second", lambda: acting.close("second"))
    await good.close()
    with pytest.raises(OSError, match="gone"):
        await bad.close()
    await cleanup.aclose()
    assert acting.done == ["first", "second", "second"]


def test_ids_say_which_attempt_they_mean() -> None:
    assert EpisodeId(rollout_id="1-0", attempt=2).capture_key == "1-0-a2"
    assert {EpisodeId(rollout_id="1-0")} == {EpisodeId(rollout_id="1-0")}
    for bad in ("-1", "a/b", "1-0-a3"):
        with pytest.raises(ValueError, match="rollout_id"):
            EpisodeId(rollout_id=bad)


def test_a_limit_needs_a_limit_on_waiting() -> None:
    with pytest.raises(ValueError, match="queue_timeout_seconds"):
        server(max_concurrent_episodes=1)
