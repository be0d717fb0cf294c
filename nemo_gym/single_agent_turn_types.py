"""Front door: the bodies of the protocol ``single_agent_turn``: one task, one response of an agent, one verdict."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.schemas.episodes import BaseEpisodeRequest, BaseEpisodeResponse, EpisodeFailure
from nemo_gym.schemas.observations import AgentObservationBundle

__all__ = [
    "SingleAgentTurnFailure",
    "SingleAgentTurnRequest",
    "SingleAgentTurnResponse",
    "SingleAgentTurnResult",
    "SingleAgentTurnTaskInput",
]


class SingleAgentTurnTaskInput(BaseModel):
    """A task: the request for the agent, and the fields for the verifier. Flat rows are taken apart."""

    model_config = ConfigDict(extra="forbid")

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    task_data: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _moves_fields_inside(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        inside = dict(given.get("task_data") or {})
        for name, value in given.items():
            if name in ("responses_create_params", "task_data"):
                continue
            if name in inside and inside[name] != value:
                raise ValueError(f"{name!r} has one value inside task_data and another outside")
            inside[name] = value
        return {"responses_create_params": given.get("responses_create_params"), "task_data": inside}


class SingleAgentTurnResult(BaseVerifyResponse):
    """The verdict, and what the agent observed."""

    model_config = ConfigDict(extra="allow")

    ng_agent_observations: AgentObservationBundle | None = None


class SingleAgentTurnFailure(EpisodeFailure):
    """A failure, and what the agent had responded by then."""

    partial_response: NeMoGymResponse | None = None


class SingleAgentTurnRequest(BaseEpisodeRequest[SingleAgentTurnTaskInput]):
    """The request to run one task."""


class SingleAgentTurnResponse(BaseEpisodeResponse[SingleAgentTurnResult]):
    """How it ended."""

    failure: SingleAgentTurnFailure | None = None
