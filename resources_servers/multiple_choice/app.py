"""Questions with several options, one of which is right; the answer names it by letter, by text or by pattern."""

import re
from typing import Annotated, Any, ClassVar, Self

from fastapi import FastAPI
from pydantic import BaseModel, BeforeValidator, ConfigDict, PrivateAttr, model_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
    refuse_invalid_rows,
)
from nemo_gym.openai_utils import answer_text
from nemo_gym.process_pool import CallLimitError, ProcessPool
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from nemo_gym.server_utils import close_with_app
from resources_servers.multiple_choice.formats import GradingMode, find_choice
from resources_servers.multiple_choice.options import find_label, read_options

DEFAULT_MODE: GradingMode = "strict_single_letter_boxed"


def _as_list(value: Any) -> Any:
    patterns = [value] if isinstance(value, str) else value
    for pattern in patterns or []:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"output_regex {pattern!r} is not a regular expression ({error})") from error
    return patterns


class TemplateMetadata(BaseModel):
    """How the prompt asked for the answer; fields that only the prompt needs are kept."""

    model_config = ConfigDict(extra="allow")

    output_regex: Annotated[list[str] | None, BeforeValidator(_as_list)] = None


class MultipleChoiceRow(BaseModel):
    """The fields of a row that matter here."""

    options: Any
    expected_answer: str | int
    grading_mode: GradingMode | None = None
    template_metadata: TemplateMetadata | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        find_label(self.expected_answer, read_options(self.options))
        return self


class MultipleChoiceConfig(BaseResourcesServerConfig):
    """``grading_mode``, if set, overrides that of the rows."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS
    grading_mode: GradingMode | None = None
    pattern_time_limit_s: float = 1.0


class MultipleChoiceSeedSessionRequest(MultipleChoiceRow, BaseSeedSessionRequest):
    """A row that can't be verified is refused before it costs a model call."""


class MultipleChoiceVerifyRequest(MultipleChoiceRow, BaseVerifyRequest):
    """A row with the agent's response."""

    uuid: str | None = None
    question: str | None = None
    category: str | None = None
    metadata: dict[str, Any] | None = None


class MultipleChoiceVerifyResponse(MultipleChoiceVerifyRequest, BaseVerifyResponse):
    """The score, the option that was chosen, and how it was found."""

    accuracy: float
    extracted_answer: str | None
    reason: str


class MultipleChoiceServer(SimpleResourcesServer):
    """Finds the chosen option."""

    config: MultipleChoiceConfig
    _patterns: ProcessPool = PrivateAttr()

    seed_session: ClassVar[Any] = refuse_invalid_rows(MultipleChoiceSeedSessionRequest)

    def model_post_init(self, context: Any, /) -> None:
        """Prepare the processes for patterns; none is started unless a row has one."""
        super().model_post_init(context)
        self._patterns = ProcessPool(
            "resources_servers.multiple_choice.formats:search_patterns", time_limit_s=self.config.pattern_time_limit_s
        )

    def setup_webserver(self) -> FastAPI:
        """Build the standard app; the processes end with it."""
        app = super().setup_webserver()
        close_with_app(app, self._patterns.close)
        return app

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: MultipleChoiceVerifyRequest
    ) -> MultipleChoiceVerifyResponse:
        """Reward the right option."""
        options = read_options(body.options)
        expected = find_label(body.expected_answer, options)
        chosen, reason = await self._find(body, options)
        accuracy = float(chosen == expected)
        return MultipleChoiceVerifyResponse(
            **{**dict(body), "expected_answer": expected},
            reward=accuracy,
            accuracy=accuracy,
            extracted_answer=chosen,
            reason=reason,
        )

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Add pass@k and majority@k over the chosen options."""
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The means, and pass@k and majority@k at the highest k."""
        return {
            **super().get_key_metrics(agent_metrics),
            **highest_k_metrics(agent_metrics, "pass@{k}", score_names=["accuracy"]),
            **highest_k_metrics(agent_metrics, "majority@{k}", score_names=["accuracy"]),
        }

    async def _find(self, body: MultipleChoiceVerifyRequest, options: dict[str, str]) -> tuple[str | None, str]:
        text = answer_text(body.response, reasoning_tags=self.config.reasoning_tags)
        patterns = body.template_metadata.output_regex if body.template_metadata else None
        if patterns:
            try:
                chosen = await self._patterns.call(patterns, text, options)
            except CallLimitError as error:
                return None, f"the search by output_regex {error}"
            if chosen:
                return chosen, "found by output_regex"
        mode = self.config.grading_mode or body.grading_mode or DEFAULT_MODE
        chosen = find_choice(text, options, mode)
        return chosen, f"found by {mode}" if chosen else f"no option was found by {mode}"


if __name__ == "__main__":
    MultipleChoiceServer.run_webserver()
