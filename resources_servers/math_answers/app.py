"""Final answers to mathematical questions, compared exactly or symbolically; a judge may give a second opinion."""

import asyncio
import importlib.util
import re
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from fastapi import FastAPI
from pydantic import BeforeValidator, Field, PrivateAttr, StringConstraints

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
    refuse_invalid_rows,
)
from nemo_gym.errors import ConfigError
from nemo_gym.judge import Judge, JudgeConfig
from nemo_gym.openai_utils import answer_text
from nemo_gym.process_pool import CallLimitError, ProcessPool
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from nemo_gym.server_utils import close_with_app
from resources_servers.math_answers.compare import Comparison, compare_plainly, repeats_question
from resources_servers.math_answers.extract import MAX_ANSWER, extract_answer

INSTALL: Final = "pip install 'rollout-gym[environments]', or -r resources_servers/math_answers/requirements.txt"
# Longer text is searched in a thread, so that other rollouts do not wait.
SHORT: Final = 20_000
_DELIMITERS: Final = re.compile(
    r"\s*(?:\\\((.*)\\\)|\\\[(.*)\\\]|\$\$(.*)\$\$|\$([^$]*)\$|\\boxed\{([^{}]*)\})\s*", re.DOTALL
)
# One of each form, so that the first comparison is as fast as the others.
WARM_UP: Final = ((r"\frac{\sqrt{8}}{2}", r"x^2+2x+\pi"), ("(1,2]", r"[1,\infty)"), (r"\{1,2\}", "y=2x+3"))


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


ExpectedAnswer = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_ANSWER), BeforeValidator(_as_text)
]


class MathAnswersConfig(BaseResourcesServerConfig):
    """The limits of one symbolic comparison, and the judge, if any, that is asked where it finds a difference."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS
    time_limit_s: float = Field(default=5.0, gt=0, le=60)
    memory_mb: int = Field(default=1024, ge=64)
    processes: int = Field(default=2, ge=1)
    judge: JudgeConfig | None = None


class MathAnswersSeedSessionRequest(BaseSeedSessionRequest):
    """A row that can't be verified is refused before it costs a model call."""

    expected_answer: ExpectedAnswer


class MathAnswersVerifyRequest(BaseVerifyRequest):
    """A row with the agent's response."""

    expected_answer: ExpectedAnswer
    question: str | None = None
    kind: str | None = None
    difficulty: int | None = None


class MathAnswersVerifyResponse(MathAnswersVerifyRequest, BaseVerifyResponse):
    """The score, what it is based on, and why."""

    accuracy: float
    extracted_answer: str | None
    library_reward: float
    reason: str
    judge_label: str | None = None
    judge_agrees: bool | None = None


class Checked(NamedTuple):
    """What the rules say about an answer."""

    answer: str | None
    equal: bool
    reason: str


class MathAnswersServer(SimpleResourcesServer):
    """Finds and compares final answers."""

    config: MathAnswersConfig
    _pool: ProcessPool = PrivateAttr()
    _judge: Judge | None = PrivateAttr(default=None)

    seed_session: ClassVar[Any] = refuse_invalid_rows(MathAnswersSeedSessionRequest)

    def model_post_init(self, context: Any, /) -> None:
        """Prepare the processes, none of which is started yet, and the judge."""
        super().model_post_init(context)
        self._pool = ProcessPool(
            "resources_servers.math_answers.symbolic:equivalent",
            size=self.config.processes,
            time_limit_s=self.config.time_limit_s,
            memory_mb=self.config.memory_mb,
            warm_up=WARM_UP,
            install=INSTALL,
        )
        if self.config.judge:
            self._judge = Judge(self.config.judge, self.server_client)

    def setup_webserver(self) -> FastAPI:
        """Build the standard app; the processes end with it."""
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("the package 'math-verify' is not installed", hint=INSTALL)
        app = super().setup_webserver()
        close_with_app(app, self._pool.close)
        return app

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: MathAnswersVerifyRequest
    ) -> MathAnswersVerifyResponse:
        """Reward an answer that equals the expected one, however it is written."""
        text = answer_text(body.response, reasoning_tags=self.config.reasoning_tags)
        checked = await self._check(body.expected_answer, text, body.question or "")
        reward, verdict = float(checked.equal), None
        if self._judge and checked.answer is not None and not checked.equal:
            verdict = await self._judge.ask(
                question=body.question or "", expected=body.expected_answer, answer=checked.answer[:MAX_ANSWER]
            )
            reward = verdict.score
        return MathAnswersVerifyResponse(
            **dict(body),
            reward=reward,
            accuracy=reward,
            extracted_answer=None if checked.answer is None else checked.answer[:MAX_ANSWER],
            library_reward=float(checked.equal),
            reason=checked.reason,
            judge_label=verdict and verdict.label,
            judge_agrees=verdict and verdict.agrees,
        )

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Add pass@k and majority@k over the extracted answers."""
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The means, and pass@k and majority@k at the highest k."""
        return {
            **super().get_key_metrics(agent_metrics),
            **highest_k_metrics(agent_metrics, "pass@{k}", score_names=["accuracy"]),
            **highest_k_metrics(agent_metrics, "majority@{k}", score_names=["accuracy"]),
        }

    async def _check(self, expected: str, text: str, question: str) -> Checked:
        found = extract_answer(text) if len(text) <= SHORT else await asyncio.to_thread(extract_answer, text)
        if found is None:
            return Checked(None, equal=False, reason="no answer was found")
        if len(found.text) > MAX_ANSWER:
            return Checked(found.text, equal=False, reason=f"the answer is longer than {MAX_ANSWER} characters")
        expected = undelimited(expected)
        # First without the library, which is much slower and needed for few answers.
        same = compare_plainly(expected, found.text, question)
        if same is None:
            try:
                same = Comparison(bool(await self._pool.call(expected, found.text)), "library")
            except CallLimitError as error:
                return Checked(found.text, equal=False, reason=f"the comparison {error}")
        if same.equal and repeats_question(expected, found.text, question):
            return Checked(found.text, equal=False, reason="only repeats the question")
        return Checked(found.text, same.equal, _reason(same.method, equal=same.equal))


def undelimited(expected: str) -> str:
    """An expected answer without the signs that mark it as a formula."""
    match = _DELIMITERS.fullmatch(expected)
    return next(group for group in match.groups() if group is not None).strip() if match else expected


def _reason(method: str, *, equal: bool) -> str:
    return f"{'equal' if equal else 'different'}, compared by {method}"


if __name__ == "__main__":
    MathAnswersServer.run_webserver()
