"""The agent without a model: it has the task's own solution played, or does nothing; then the rollout is verified.

The solution must get the full reward, and nothing must get none: that is the test of a set of tasks.
"""

from collections.abc import Mapping
from time import time
from typing import Any, Literal

from fastapi import Request, Response

from nemo_gym.base_resources_server import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.base_responses_api_agent import (
    BaseResponsesAPIAgentConfig,
    Body,
    Cookies,
    ResponseFields,
    ResponsesRequest,
    SimpleResponsesAPIAgent,
    TaskRow,
    fields_of,
)
from nemo_gym.config_types import ResourcesServerRef
from nemo_gym.conversion.new_responses import NewId, response_to
from nemo_gym.metrics.aggregate import forwards_metrics_to
from nemo_gym.server_utils import get_response_json, raise_for_status
from nemo_gym.servers.direct.replies import JsonResponse


class ReferenceAgentConfig(BaseResponsesAPIAgentConfig):
    """The environment, and what is played in it."""

    resources_server: ResourcesServerRef
    plays: Literal["solution", "nothing"]


class ReferenceAgent(SimpleResponsesAPIAgent):
    """Seeds a rollout, in which the environment plays the solution if it is told to, and has it verified."""

    config: ReferenceAgentConfig

    async def run(self, request: Request, body: TaskRow = Body()) -> Response:
        """Run one rollout."""
        row = fields_of(body)
        asked = {**row, "solved_by": "solution"} if self.config.plays == "solution" else row
        seeded = await self._post("/seed_session", asked, request.cookies)
        await raise_for_status(seeded)
        verified = await self._post(
            "/verify", {**row, "response": self._response(row["responses_create_params"])}, seeded.cookies
        )
        await raise_for_status(verified)
        return JsonResponse(await verified.read())

    async def responses(self, body: ResponsesRequest = Body()) -> ResponseFields:
        """An empty response: no model is asked."""
        return self._response(body)

    async def _post(self, path: str, content: Any, cookies: Cookies) -> Any:
        name = self.config.resources_server.name
        return await self.server_client.post(server_name=name, url_path=path, json=content, cookies=cookies)

    def _response(self, request: Mapping[str, Any]) -> ResponseFields:
        made = response_to(
            request, [], id=f"resp_{NewId().hex}", created_at=time(), model=self.config.name, reason=None, usage=None
        )
        return ResponseFields(made)

    @forwards_metrics_to("resources_server")
    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Ask the environment, which knows what its fields mean."""
        reply = await self._post("/aggregate_metrics", body, None)
        await raise_for_status(reply)
        return AggregateMetrics.model_validate(await get_response_json(reply))


if __name__ == "__main__":
    ReferenceAgent.run_webserver()
