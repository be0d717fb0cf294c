"""Answers that only a model can compare: a judge decides whether they say the same, or which criteria they meet.

A judge that can't be reached, or whose answer can't be read, fails the rollout; that never becomes a reward of 0.
"""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    SimpleResourcesServer,
    refuse_invalid_rows,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.judge import Judge, every_verdict
from nemo_gym.openai_utils import answer_text
from resources_servers.equivalence_judge.prompts import (
    Tally,
    equivalence_judge,
    read_template,
    rubric_judge,
    shown,
    tally,
)


class EquivalenceJudgeConfig(BaseResourcesServerConfig):
    """Who judges, what it is asked, and how often."""

    judge_model_server: ModelServerRef
    judge_responses_create_params: dict[str, Any] = Field(default_factory=dict)
    judge_endpoint_max_concurrency: int = Field(default=64, ge=1)
    judge_max_attempts: int = Field(default=3, ge=1)
    judge_structured: bool = False  # the endpoint writes JSON by a schema
    judge_system_message: str | None = None
    judge_prompt_template_fpath: str = "prompt_templates/equivalence.txt"
    rubric_prompt_template_fpath: str = "prompt_templates/rubric.txt"
    judge_equal_label: str = "[[A=B]]"
    judge_not_equal_label: str = "[[A!=B]]"
    check_twice_swap: bool = False
    reward_if_swap_fails: float = Field(default=0.0, ge=0, le=1)
    votes: int = Field(default=1, ge=1, le=25)
    accept_identical_text: bool = True


class Criterion(BaseModel):
    """One line of a rubric."""

    criterion: str
    points: float = Field(default=1.0, gt=0)


class EquivalenceJudgeTask(BaseModel):
    """The fields of a row that say what is expected: an answer, or a rubric."""

    model_config = ConfigDict(extra="allow")

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    expected_answer: str | None = None
    metadata: dict[str, Any] | None = None
    rubric: list[Criterion] = Field(default_factory=list, max_length=50)
    question: str | None = None

    @model_validator(mode="after")
    def _says_what_is_expected(self) -> Self:
        if self.expected_answer is None and self.metadata and "expected_answer" in self.metadata:
            self.expected_answer = str(self.metadata["expected_answer"])
        if self.expected_answer is None and not self.rubric:
            raise ValueError("a row needs an expected_answer or a rubric")
        return self


class EquivalenceJudgeVerifyRequest(EquivalenceJudgeTask, BaseVerifyRequest):
    """A row with the agent's response."""


class EquivalenceJudgeVerifyResponse(EquivalenceJudgeVerifyRequest, BaseVerifyResponse):
    """The score and what the judge said."""

    judged: bool
    judge_agreement: float | None
    judge_consistent: bool | None
    judge_evaluations: list[dict[str, Any]]
    met_criteria: list[str]


class EquivalenceJudgeServer(SimpleResourcesServer):
    """Asks the judge and counts its votes."""

    config: EquivalenceJudgeConfig
    _equivalence: Judge = PrivateAttr()
    _rubric: Judge = PrivateAttr()

    seed_session: ClassVar[Any] = refuse_invalid_rows(EquivalenceJudgeTask)

    def model_post_init(self, context: Any, /) -> None:
        """Read the templates: a mistake in one is found at the start."""
        super().model_post_init(context)
        config = self.config
        options = {
            "system": config.judge_system_message,
            "structured": config.judge_structured,
            "responses_create_params": config.judge_responses_create_params,
            "max_concurrent_requests": config.judge_endpoint_max_concurrency,
            "max_attempts": config.judge_max_attempts,
        }
        equivalence = equivalence_judge(
            config.judge_model_server,
            read_template(config.judge_prompt_template_fpath),
            labels=(config.judge_equal_label, config.judge_not_equal_label),
            swap=config.check_twice_swap,
            **options,
        )
        rubric = rubric_judge(config.judge_model_server, read_template(config.rubric_prompt_template_fpath), **options)
        self._equivalence = Judge(equivalence, self.server_client)
        self._rubric = Judge(rubric, self.server_client)

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: EquivalenceJudgeVerifyRequest
    ) -> EquivalenceJudgeVerifyResponse:
        """Have the final answer judged; an empty one needs no judge."""
        answer = answer_text(body.response, reasoning_tags=self.config.reasoning_tags, last_message=True).strip()
        if not answer:
            return _result(body, 0.0)
        question = shown(body.question or last_user_text(body))
        if body.rubric:
            return await self._by_rubric(body, question, answer)
        expected = body.expected_answer or ""
        if self.config.accept_identical_text and _same_text(answer, expected):
            return _result(body, 1.0)
        found = await self._votes(
            self._equivalence,
            question=question,
            expected_answer=shown(expected),
            generated_answer=shown(answer),
        )
        return _result(body, found.score, [found])

    async def _by_rubric(
        self, body: EquivalenceJudgeVerifyRequest, question: str, answer: str
    ) -> EquivalenceJudgeVerifyResponse:
        found = await every_verdict(
            *(
                self._votes(
                    self._rubric, question=question, generated_answer=shown(answer), criterion=shown(line.criterion)
                )
                for line in body.rubric
            )
        )
        met = [line for line, each in zip(body.rubric, found, strict=True) if each.score == 1.0]
        reward = sum(line.points for line in met) / sum(line.points for line in body.rubric)
        return _result(body, reward, found, [line.criterion for line in met])

    async def _votes(self, judge: Judge, **values: str) -> Tally:
        verdicts = await every_verdict(*(judge.ask(**values) for _ in range(self.config.votes)))
        return tally(verdicts, on_disagreement=self.config.reward_if_swap_fails)


def _result(
    body: EquivalenceJudgeVerifyRequest, reward: float, found: list[Tally] | None = None, met: list[str] | None = None
) -> EquivalenceJudgeVerifyResponse:
    found = found or []
    verdict = {
        "reward": reward,
        "judged": bool(found),
        "judge_agreement": sum(each.agreement for each in found) / len(found) if found else None,
        "judge_consistent": all(each.consistent for each in found) if found else None,
        "judge_evaluations": [evaluation for each in found for evaluation in each.evaluations],
        "met_criteria": met or [],
    }
    # A saved rollout that is verified again has an older verdict in its fields.
    return EquivalenceJudgeVerifyResponse(**{**dict(body), **verdict})


def _same_text(answer: str, expected: str) -> bool:
    same = answer.casefold().rstrip(".")
    return bool(same) and same == expected.strip().casefold().rstrip(".")


def last_user_text(task: EquivalenceJudgeTask) -> str:
    """What the user asked last."""
    given = task.responses_create_params.input
    if isinstance(given, str):
        return given
    for item in reversed(given):
        if getattr(item, "role", None) == "user":
            content = getattr(item, "content", "")
            return content if isinstance(content, str) else "".join(getattr(part, "text", "") for part in content)
    return ""


if __name__ == "__main__":
    EquivalenceJudgeServer.run_webserver()
