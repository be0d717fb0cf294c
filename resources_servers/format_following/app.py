"""Instructions about the form of an answer, each verified by a check that looks only at the text."""

from typing import Any, ClassVar, Literal

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
    refuse_invalid_rows,
)
from nemo_gym.openai_utils import answer_text
from resources_servers.format_following.checks import Checks, judge


class FormatFollowingConfig(BaseResourcesServerConfig):
    """``grading``: reward only an answer that passes ``all`` checks, or the ``fraction`` that it passes."""

    grading: Literal["all", "fraction"] = "all"


class FormatFollowingSeedSessionRequest(BaseSeedSessionRequest):
    """The row's checks, so that a row that cannot be verified is refused before it costs a model call."""

    checks: Checks


class FormatFollowingVerifyRequest(BaseVerifyRequest):
    """A row with the agent's response."""

    checks: Checks
    prompt: str | None = None
    difficulty: int | None = None


class FormatFollowingVerifyResponse(FormatFollowingVerifyRequest, BaseVerifyResponse):
    """The row with its reward and the reasons for it."""

    accuracy: float
    fraction_passed: float
    passed_checks: list[str]
    failed_checks: list[str]


class FormatFollowingServer(SimpleResourcesServer):
    """Checks the form of answers."""

    config: FormatFollowingConfig

    seed_session: ClassVar[Any] = refuse_invalid_rows(FormatFollowingSeedSessionRequest)

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: FormatFollowingVerifyRequest
    ) -> FormatFollowingVerifyResponse:
        """Apply every check of the row to the answer."""
        verdict = judge(answer_text(body.response, reasoning_tags=self.config.reasoning_tags), body.checks)
        fraction = len(verdict.passed) / len(body.checks)
        accuracy = float(not verdict.failed)
        return FormatFollowingVerifyResponse(
            **dict(body),
            reward=accuracy if self.config.grading == "all" else fraction,
            accuracy=accuracy,
            fraction_passed=fraction,
            passed_checks=verdict.passed,
            failed_checks=verdict.failed,
        )


if __name__ == "__main__":
    FormatFollowingServer.run_webserver()
