"""Sessions of agents, and the prefix of a rollout: what environment servers and recorders of calls rely on."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from omegaconf import OmegaConf
from pydantic import Field

from nemo_gym.base_responses_api_agent import (
    AgentCloseSessionResponse,
    AgentSeedSessionRequest,
    AgentSessionSetupError,
    AgentSessionState,
    BaseResponsesAPIAgentConfig,
    SimpleResponsesAPIAgent,
)
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.server_utils import ServerClient

EPISODE = {"rollout_id": "1-0"}
SEED = {"agent_session_id": "s1", "episode_id": EPISODE, "task_id": {"taskset": "e:t", "task_id": "1"}}
CLOSE = {"agent_session_id": "s1", "episode_id": EPISODE}
SESSIONS, CLOSING = "/v1/agent_sessions", "/v1/agent_sessions/close"


class SessionAgent(SimpleResponsesAPIAgent):
    ray_enabled = False

    seeded: list[str] = Field(default_factory=list)
    closing_fails: bool = False
    setup_fails: bool = False

    async def _seed_agent_session_state(self, body: AgentSeedSessionRequest) -> AgentSessionState:
        self.seeded.append(body.agent_session_id)
        state = AgentSessionState(body)
        if self.setup_fails:
            raise AgentSessionSetupError(state, error=RuntimeError("no room"))
        return state

    async def _close_agent_session_state(self, state: AgentSessionState) -> AgentCloseSessionResponse:
        if self.closing_fails:
            raise RuntimeError("stuck")
        closed = state.request.agent_session_id
        return AgentCloseSessionResponse(agent_session_id=closed, resources_cookies={"left": "1"})

    async def responses(self) -> Any:
        return {}

    async def run(self) -> Any:
        return {}


def agent(config: dict[str, Any] | None = None, **settings: Any) -> SessionAgent:
    own = BaseResponsesAPIAgentConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="agent", **settings)
    head = BaseServerConfig(host="127.0.0.1", port=2)
    client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create(config or {}))
    return SessionAgent(config=own, server_client=client)


def statuses(client: TestClient, *calls: tuple[str, dict[str, Any]]) -> list[int]:
    return [client.post(path, json=body).status_code for path, body in calls]


def test_equal_seeds_are_one_session_and_contradictions_are_refused() -> None:
    server = agent()
    client = TestClient(server.setup_webserver())
    other = {**SEED, "task_id": {"taskset": "e:t", "task_id": "2"}}
    wrong = {**CLOSE, "episode_id": {"rollout_id": "1-1"}}
    assert statuses(client, (SESSIONS, SEED), (SESSIONS, SEED), (SESSIONS, other)) == [200, 200, 409]
    assert statuses(client, (SESSIONS, {**SEED, "agent_session_id": "s2"}), (CLOSING, wrong)) == [409, 409]
    assert server.seeded == ["s1"]
    assert server._require_agent_session("s1").request.agent_session_id == "s1"


def test_a_close_can_be_repeated_and_ends_the_session() -> None:
    server = agent()
    client = TestClient(server.setup_webserver())
    client.post(SESSIONS, json=SEED)
    first, again = client.post(CLOSING, json=CLOSE), client.post(CLOSING, json=CLOSE)
    assert first.json() == again.json()
    assert first.json()["resources_cookies"] == {"left": "1"}
    assert statuses(client, (SESSIONS, SEED)) == [409]
    assert not server._session_records
    assert list(server._closed_session_records) == ["s1"]


def test_a_close_before_its_seed_keeps_the_seed_out() -> None:
    client = TestClient(agent().setup_webserver())
    assert statuses(client, (CLOSING, CLOSE), (SESSIONS, SEED)) == [200, 409]


def test_a_close_that_fails_keeps_the_state() -> None:
    server = agent()
    client = TestClient(server.setup_webserver(), raise_server_exceptions=False)
    client.post(SESSIONS, json=SEED)
    server.closing_fails = True
    assert statuses(client, (CLOSING, CLOSE)) == [500]
    server.closing_fails = False
    assert statuses(client, (SESSIONS, SEED), (CLOSING, CLOSE)) == [200, 200]


def test_a_session_that_could_not_be_set_up_can_only_be_closed() -> None:
    server = agent()
    server.setup_fails = True
    client = TestClient(server.setup_webserver(), raise_server_exceptions=False)
    assert statuses(client, (SESSIONS, SEED), (SESSIONS, SEED), (CLOSING, CLOSE)) == [500, 409, 200]


def test_names_of_tools_are_unique_and_those_of_a_seed_win() -> None:
    tools = {"kind": "direct_http", "name": "t", "required": True, "base_url": "http://127.0.0.1:1"}
    server = agent(tool_accesses=[tools])
    seed = AgentSeedSessionRequest(**SEED, tool_accesses=[{**tools, "base_url": "http://127.0.0.1:2"}])
    assert [each.base_url for each in server.effective_tool_accesses(seed)] == ["http://127.0.0.1:2"]
    with pytest.raises(ValueError, match="several tool accesses are called t"):
        AgentSeedSessionRequest(**SEED, tool_accesses=[tools, tools])


def test_sessions_need_one_worker() -> None:
    client = TestClient(agent(num_workers=2).setup_webserver())
    with pytest.raises(ValueError, match="num_workers"):
        client.post(SESSIONS, json=SEED)


@pytest.mark.parametrize(
    ("config", "own", "prefix"),
    [
        ({}, False, ""),
        ({"observability_enabled": True}, False, "/ng-rollout/3-1"),
        ({"token_id_capture": {"enabled": True}}, False, ""),
        ({"token_id_capture": {"enabled": True}}, True, "/ng-rollout/3-1/training-token-capture"),
    ],
)
def test_the_prefix_of_a_rollout_is_there_only_if_calls_are_recorded(
    config: dict[str, Any], own: bool, prefix: str
) -> None:
    server = agent(config, token_id_capture=own)
    row = {"_ng_task_index": 3, "_ng_rollout_index": 1}
    assert server.url_path_for_run("/v1/responses", row) == f"{prefix}/v1/responses"
    assert server.base_url_for_run("http://host:1/v1", row) == f"http://host:1{prefix}/v1"
