from typing import Any

from nemo_gym.base_environment_server import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseEnvironmentServer,
    BaseEnvironmentServerConfig,
    CleanupContext,
    HandledEpisodeError,
)
from nemo_gym.config_types import AgentServerRef, ResourcesServerRef
from nemo_gym.episode_types import EpisodeFailure
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.server_utils import get_response_json, get_server_url
from nemo_gym.single_agent_turn_types import SingleAgentTurnRequest, SingleAgentTurnResponse, SingleAgentTurnResult


class QuietTurnConfig(BaseEnvironmentServerConfig):
    resources_server: ResourcesServerRef
    agent_server: AgentServerRef


class QuietTurn(BaseEnvironmentServer[SingleAgentTurnRequest, SingleAgentTurnResponse]):
    ray_enabled = False
    request_model = SingleAgentTurnRequest
    response_model = SingleAgentTurnResponse
    config: QuietTurnConfig

    async def call(self, server: str, path: str, body: dict[str, Any], cookies: Any, stage: str) -> Any:
        reply = await self.server_client.post(server_name=server, url_path=path, json=body, cookies=cookies)
        if reply.status >= 400:
            reason = (await reply.read()).decode(errors="replace")[:2000]
            failure = EpisodeFailure(failure_reason=reason, terminal=reply.status < 500, stage=stage)
            raise HandledEpisodeError(failure)
        return reply

    async def run(self, request: SingleAgentTurnRequest, cleanup: CleanupContext) -> SingleAgentTurnResponse:
        resources, agent = self.config.resources_server.name, self.config.agent_server.name
        episode = request.episode_id.model_dump()
        named = {"episode_id": episode, "task_id": request.task.task_id.model_dump()}
        session = f"resources-session-{request.episode_id.capture_key}"
        data = request.task.task_input.task_data
        seed = {"resources_session_id": session, **named, "task_data": data}
        seeded = await self.call(resources, "/seed_session", seed, None, "seed")
        cookies = {name: str(value) for name, value in seeded.cookies.items()}

        async def close() -> None:
            body = {"resources_session_id": session, "episode_id": episode}
            await self.call(resources, "/close_session", body, cookies, "cleanup")

        cleanup.register_cleanup("resources session", close)
        tools = {
            "kind": "direct_http",
            "name": f"{resources}.direct_http",
            "required": True,
            "base_url": get_server_url(resources),
            "cookies": cookies,
        }
        opened = await self.call(
            agent, "/v1/agent_sessions", {"agent_session_id": session, **named, "tool_accesses": [tools]}, None, "agent"
        )
        params = request.task.task_input.responses_create_params.model_dump(exclude_unset=True)
        prefix = f"/ng-rollout/{request.episode_id.capture_key}"
        responded = await self.call(agent, f"{prefix}/v1/responses", params, opened.cookies, "agent")
        closing = {"agent_session_id": session, "episode_id": episode}
        closed = await get_response_json(
            await self.call(agent, "/v1/agent_sessions/close", closing, opened.cookies, "cleanup")
        )
        rollout = {**data, "responses_create_params": params, "response": await get_response_json(responded)}
        verified = await self.call(resources, "/verify", rollout, closed["resources_cookies"], "verification")
        verdict = {**await get_response_json(verified), "rollout_id": current_rollout_id()}
        return SingleAgentTurnResponse(
            episode_id=request.episode_id,
            task_id=request.task.task_id,
            result=SingleAgentTurnResult(**verdict, ng_agent_observations=closed["agent_observations"]),
        )

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        reply = await self.server_client.post(
            server_name=self.config.resources_server.name, url_path="/aggregate_metrics", json=body
        )
        return AggregateMetrics.model_validate(await get_response_json(reply))


if __name__ == "__main__":
    QuietTurn.run_webserver()
