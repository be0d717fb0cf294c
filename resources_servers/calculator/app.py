"""Arithmetic word problems with a calculator; the final number must be exactly right."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import answer_text
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from resources_servers.calculator.answers import extract_number, parse_number
from resources_servers.calculator.expressions import ExpressionError, evaluate, format_number


class CalculatorConfig(BaseResourcesServerConfig):
    """This environment adds no settings."""


class CalculatorRequest(BaseModel):
    """Arguments of ``calculator``."""

    expression: str


class CalculatorResult(BaseModel):
    """The value of an expression in plain decimal notation."""

    result: str


class CalculatorError(BaseModel):
    """Why an expression has no value, for the model to try again."""

    error: str


class CalculatorVerifyRequest(BaseVerifyRequest):
    """A row with the agent's response."""

    expected_answer: str
    question: str | None = None
    kind: str | None = None
    difficulty: int | None = None


class CalculatorVerifyResponse(CalculatorVerifyRequest, BaseVerifyResponse):
    """The row with its reward and what that is based on."""

    accuracy: float
    tool_calls: int
    used_calculator: bool
    extracted_answer: str | None


class CalculatorServer(SimpleResourcesServer):
    """Evaluates expressions and checks answers."""

    config: CalculatorConfig

    def setup_webserver(self) -> FastAPI:
        """Add the tool to the standard routes."""
        app = super().setup_webserver()
        app.post("/calculator")(self.calculator)
        return app

    async def calculator(self, body: CalculatorRequest) -> CalculatorResult | CalculatorError:
        """Evaluate an expression. A failure is explained to the model rather than raised."""
        try:
            return CalculatorResult(result=format_number(evaluate(body.expression)))
        except ExpressionError as error:
            return CalculatorError(error=str(error))

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: CalculatorVerifyRequest
    ) -> CalculatorVerifyResponse:
        """Reward exactly the right number, however it is written."""
        expected = parse_number(body.expected_answer)
        if expected is None:
            raise ValueError(f"the row's expected_answer is not a number: {body.expected_answer!r}")
        answer = extract_number(
            answer_text(body.response, reasoning_tags=self.config.reasoning_tags, last_message=True)
        )
        calls = [item.name for item in body.response.output if item.type == "function_call"]
        accuracy = float(answer == expected)
        return CalculatorVerifyResponse(
            **dict(body),
            reward=accuracy,
            accuracy=accuracy,
            tool_calls=len(calls),
            used_calculator="calculator" in calls,
            extracted_answer=None if answer is None else format_number(answer),
        )

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Add pass@k and majority@k over the extracted answers."""
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """Choose the means, and pass@k and majority@k at the highest k."""
        return {
            **super().get_key_metrics(agent_metrics),
            **highest_k_metrics(agent_metrics, "pass@{k}", score_names=["accuracy"]),
            **highest_k_metrics(agent_metrics, "majority@{k}", score_names=["accuracy"]),
        }


if __name__ == "__main__":
    CalculatorServer.run_webserver()
