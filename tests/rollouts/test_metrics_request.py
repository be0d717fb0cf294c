"""Whether metrics can be computed without asking the agent, judged by the servers of this process."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.rollouts.metrics_request import has_default_metrics
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.schemas.rows import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app
from nemo_gym.servers.server_client import GymClient
from responses_api_agents.simple_agent.app import SimpleAgent


class Plain(SimpleResourcesServer):
    async def verify(self, body: Any) -> Any: ...


class Computes(Plain):
    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return {"tasks": len(tasks)}


class Selects(Plain):
    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return agent_metrics


class Answers(Plain):
    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return AggregateMetrics()


class MyAgent(SimpleAgent):
    pass


def local(server_class: Any, **settings: Any) -> LocalServer:
    common = {"name": "me", "host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "domain": "other"}
    config_class: Any = server_class.model_fields["config"].annotation
    if not issubclass(config_class, BaseResourcesServerConfig):
        del common["domain"]
    head = BaseServerConfig(host="127.0.0.1", port=1)
    client = GymClient(head_server_config=head, global_config_dict=OmegaConf.create({})).for_server(server_class)
    server = server_class(config=config_class.model_validate({**common, **settings}), server_client=client)
    return LocalServer(build_app(server), label="me", base_url="http://127.0.0.1:1")


def agent(server_class: Any, resources: str) -> LocalServer:
    return local(
        server_class,
        resources_server={"type": "resources_servers", "name": resources},
        model_server={"type": "responses_api_models", "name": "policy_model"},
    )


@pytest.mark.parametrize(("server", "default"), [(Plain, True), (Computes, False), (Selects, False), (Answers, False)])
def test_a_server_with_a_hook_of_its_own_has_to_be_asked(server: Any, default: bool) -> None:
    assert has_default_metrics({"r": local(server)}, "r") is default


@pytest.mark.parametrize("agent_class", [SimpleAgent, MyAgent])
@pytest.mark.parametrize(("server", "default"), [(Plain, True), (Computes, False)])
def test_an_agent_that_hands_the_question_on_is_as_its_resources_server(
    agent_class: Any, server: Any, default: bool
) -> None:
    servers = {"a": agent(agent_class, "r"), "r": local(server)}
    assert has_default_metrics(servers, "a") is default


def test_of_servers_elsewhere_nothing_is_known() -> None:
    assert not has_default_metrics({"a": agent(SimpleAgent, "elsewhere")}, "a")
    assert not has_default_metrics({}, "a")
