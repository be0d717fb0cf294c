import json

from fastapi import Request, Response
from pydantic import ConfigDict
from resources_servers.word_ledger.helpers import count

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming, accumulate_response_usage
from nemo_gym.server_utils import get_response_json, raise_for_status


class CarefulAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef


class CarefulRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class CarefulVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class CarefulAgent(SimpleResponsesAPIAgent):
    config: CarefulAgentConfig

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        question, output, usage = list(body.input), [], None
        cookies, model_cookies = request.cookies, None
        while True:
            params = body.model_copy(update={"input": question + output})
            reply = await self.server_client.post(
                server_name=self.config.model_server.name, url_path="/v1/responses", json=params, cookies=model_cookies
            )
            await raise_for_status(reply)
            model_cookies = reply.cookies
            answer = NeMoGymResponse.model_validate(await get_response_json(reply))
            output += answer.output
            usage = accumulate_response_usage(usage, answer.usage)
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                break
            for call in calls:
                tool = await self.server_client.post(
                    server_name=self.config.resources_server.name,
                    url_path=f"/{call.name}",
                    json=json.loads(call.arguments),
                    cookies=cookies,
                )
                cookies = tool.cookies
                text = (await tool.content.read()).decode()
                output.append({"type": "function_call_output", "call_id": call.call_id, "output": text})
        for name, cookie in {**cookies, **model_cookies}.items():
            response.set_cookie(name, cookie)
        return NeMoGymResponse.model_validate({**answer.model_dump(), "output": output, "usage": usage})

    async def run(self, request: Request, body: CarefulRunRequest) -> CarefulVerifyResponse:
        seeded = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path=self.url_path_for_run("/seed_session", body),
            json=body.model_dump(),
            cookies=request.cookies,
        )
        await raise_for_status(seeded)
        responded = await self.server_client.post(
            server_name=self.config.name,
            url_path="/v1/responses",
            json=body.responses_create_params,
            cookies=seeded.cookies,
        )
        await raise_for_status(responded)
        verified = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path=self.url_path_for_run("/verify", body),
            json={**body.model_dump(), "response": await responded.json(), "words": count("two words")},
            cookies=responded.cookies,
        )
        await raise_for_status(verified)
        return CarefulVerifyResponse.model_validate(await verified.json())


if __name__ == "__main__":
    CarefulAgent.run_webserver()
