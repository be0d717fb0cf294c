"""Python functions and programs, run in a sandbox against tests that the solution can't see."""

from typing import Any, ClassVar, Literal

from fastapi import FastAPI
from pydantic import Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
    refuse_invalid_rows,
)
from nemo_gym.openai_utils import answer_text
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from nemo_gym.sandbox import Isolation, LazyRunner, SandboxLimits, SandboxSettings
from nemo_gym.server_utils import close_with_app
from resources_servers.python_code.answers import extract_code
from resources_servers.python_code.verification import (
    HiddenTests,
    Verdict,
    complete,
    modules_in_the_box,
    verify_solution,
)


class PythonCodeConfig(BaseResourcesServerConfig):
    """How solutions are run and graded."""

    grading: Literal["all", "fraction"] = "all"
    sandbox_isolation: Isolation = "auto"
    sandbox_parallel: int | None = Field(default=None, ge=1)
    sandbox_image: str = "python:3.12-slim"
    cpu_s: float = Field(default=5.0, gt=0)
    wall_s: float = Field(default=15.0, gt=0)
    memory_mib: int = Field(default=512, gt=0)


class PythonCodeSeedSessionRequest(BaseSeedSessionRequest):
    """The row's tests: a row that can't be verified is refused before it costs a model call."""

    tests: HiddenTests


class PythonCodeVerifyRequest(BaseVerifyRequest):
    """A row with the agent's response."""

    tests: HiddenTests
    question: str | None = None
    task_id: str | None = None
    difficulty: int | None = None


class PythonCodeVerifyResponse(PythonCodeVerifyRequest, BaseVerifyResponse):
    """The row with its reward and the reasons for it."""

    accuracy: float
    fraction_passed: float
    tests_passed: int
    tests_total: int
    reason: str | None
    extracted_code: str | None
    verification_cpu_s: float


class PythonCodeServer(SimpleResourcesServer):
    """Runs solutions in a sandbox."""

    config: PythonCodeConfig
    _runner: LazyRunner = PrivateAttr()

    seed_session: ClassVar[Any] = refuse_invalid_rows(PythonCodeSeedSessionRequest)

    def model_post_init(self, context: Any, /) -> None:
        """Configure the sandbox, which starts with the first verification."""
        super().model_post_init(context)
        config = self.config
        self._runner = LazyRunner(
            SandboxSettings(
                isolation=config.sandbox_isolation,
                limits=SandboxLimits(cpu_s=config.cpu_s, wall_s=config.wall_s, memory_mib=config.memory_mib),
                modules=modules_in_the_box(),
                image=config.sandbox_image,
                parallel=config.sandbox_parallel,
            )
        )

    def setup_webserver(self) -> FastAPI:
        """Close the sandbox with the server."""
        app = super().setup_webserver()
        close_with_app(app, self._runner.aclose)
        return app

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: PythonCodeVerifyRequest
    ) -> PythonCodeVerifyResponse:
        """Run the code of the answer against the row's tests."""
        code = extract_code(
            answer_text(body.response, reasoning_tags=self.config.reasoning_tags), body.tests.entry_point
        )
        verdict = Verdict(0, body.tests.count, "there is no code in the answer")
        if code is not None:
            runner = await self._runner.get()
            solution = complete(body.tests.setup, code, body.tests.after)
            verdict = await verify_solution(runner, solution, body.tests, limits=runner.limits)
        fraction = verdict.passed / verdict.total
        accuracy = float(verdict.passed == verdict.total)
        return PythonCodeVerifyResponse(
            **dict(body),
            reward=accuracy if self.config.grading == "all" else fraction,
            accuracy=accuracy,
            fraction_passed=fraction,
            tests_passed=verdict.passed,
            tests_total=verdict.total,
            reason=verdict.reason,
            extracted_code=code,
            verification_cpu_s=verdict.cpu_s,
        )

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Add pass@k."""
        return compute_pass_majority_metrics(tasks)[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The means, and pass@k at the highest k."""
        return {
            **super().get_key_metrics(agent_metrics),
            **highest_k_metrics(agent_metrics, "pass@{k}", score_names=["accuracy"]),
        }


if __name__ == "__main__":
    PythonCodeServer.run_webserver()
