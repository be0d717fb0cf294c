import json
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response

from nemo_gym.base_responses_api_agent import (
    AgentCloseSessionResponse,
    AgentSeedSessionRequest,
    AgentSessionState,
    BaseResponsesAPIAgentConfig,
    Body,
    SimpleResponsesAPIAgent,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.rollout_observability import AgentInvocation, AgentObservationBundle, ToolCallObservation
from nemo_gym.server_utils import get_response_json, raise_for_status, request
from nemo_gym.tool_access import DirectHTTPToolAccess


class TurnAgentConfig(BaseResponsesAPIAgentConfig):
    model_server: ModelServerRef


@dataclass
class TurnState(AgentSessionState):
    tools: DirectHTTPToolAccess | None = None
    calls: list[str] = field(default_factory=list)


class TurnAgent(SimpleResponsesAPIAgent):
    ray_enabled = False
    config: TurnAgentConfig

    async def _seed_agent_session_state(self, body: AgentSeedSessionRequest) -> TurnState:
        return TurnState(request=body, tools=self.effective_tool_accesses(body)[0])

    async def _close_agent_session_state(self, state: TurnState) -> AgentCloseSessionResponse:
        seen = [
            ToolCallObservation(invocation_id="main", tool_call_id=name, status="completed") for name in state.calls
        ]
        bundle = AgentObservationBundle(source="turn_agent", records=[AgentInvocation(invocation_id="main"), *seen])
        return AgentCloseSessionResponse(
            agent_session_id=state.request.agent_session_id,
            agent_observations=bundle,
            resources_cookies=dict(state.tools.cookies),
        )

    async def responses(
        self, request_: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        state = self._require_agent_session(self._agent_session_id_from_request(request_))
        output: list[Any] = []
        while True:
            params = body.model_copy(update={"input": [*body.input, *output]})
            reply = await self.server_client.post(
                server_name=self.config.model_server.name, url_path="/v1/responses", json=params
            )
            await raise_for_status(reply)
            answer = NeMoGymResponse.model_validate(await get_response_json(reply))
            output += answer.output
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                return NeMoGymResponse.model_validate({**answer.model_dump(), "output": output})
            for call in calls:
                tool = await request(
                    "POST",
                    f"{state.tools.base_url}/{call.name}",
                    json=json.loads(call.arguments),
                    cookies=state.tools.cookies,
                )
                state.calls.append(call.call_id)
                text = (await tool.read()).decode()
                output.append({"type": "function_call_output", "call_id": call.call_id, "output": text})

    async def run(self, response: Response, body: dict[str, Any] = Body()) -> dict[str, Any]:
        raise NotImplementedError("an environment server runs this agent")


if __name__ == "__main__":
    TurnAgent.run_webserver()
