"""Several dependent tool calls: look up a value for each synonym, then hand in all values in the order given.

Two mistakes are told apart from plain failure: looking up the word itself in place of its synonyms (the minefield),
and handing in the right values in the wrong order.
"""

import json
from collections.abc import Sequence

from fastapi import FastAPI
from pydantic import BaseModel, ValidationError

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import NeMoGymResponse


class ExampleMultiStepConfig(BaseResourcesServerConfig):
    """No settings of its own."""


class GetSynonymValueRequest(BaseModel):
    """Arguments of ``get_synonym_value``."""

    synonym: str


class GetSynonymValueResponse(BaseModel):
    """The value of one word."""

    synonym_value: int


class ExtractSynonymValuesRequest(BaseModel):
    """Arguments of ``extract_synonym_values``: the answer."""

    synonym_values: list[int]


class ExtractSynonymValuesResponse(BaseModel):
    """Says that the answer was taken, not that it is right."""

    success: bool


class ExampleMultiStepRunRequest(BaseRunRequest):
    """The fields of a row."""

    id: int | str
    expected_synonym_values: list[int]
    expected_synonyms: list[str]
    minefield_label: str
    minefield_label_value: int


class ExampleMultiStepVerifyRequest(ExampleMultiStepRunRequest, BaseVerifyRequest):
    """A row and what the agent made of it."""


class ExampleMultiStepVerifyResponse(ExampleMultiStepVerifyRequest, BaseVerifyResponse):
    """The score and its reasons."""

    parsed_synonym_values: list[int]
    accuracy: bool
    set_overlap: float
    original_term_minefield_hit: bool
    order_instruction_following_failure: bool


class ExampleMultiStepServer(SimpleResourcesServer):
    """Gives words their values and collects the answer."""

    config: ExampleMultiStepConfig

    def setup_webserver(self) -> FastAPI:
        """Add both tools to the standard routes."""
        app = super().setup_webserver()
        app.post("/get_synonym_value")(self.get_synonym_value)
        app.post("/extract_synonym_values")(self.extract_synonym_values)
        return app

    async def get_synonym_value(self, body: GetSynonymValueRequest) -> GetSynonymValueResponse:
        """The value of a word: the sum of its code points."""
        return GetSynonymValueResponse(synonym_value=word_value(body.synonym))

    async def extract_synonym_values(self, body: ExtractSynonymValuesRequest) -> ExtractSynonymValuesResponse:
        """Take the answer; it is scored later, from the call itself."""
        del body
        return ExtractSynonymValuesResponse(success=True)

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: ExampleMultiStepVerifyRequest
    ) -> ExampleMultiStepVerifyResponse:
        """Reward exactly the expected values in the expected order."""
        values, expected = submitted_values(body.response), body.expected_synonym_values
        correct = values == expected
        return ExampleMultiStepVerifyResponse(
            **dict(body),
            reward=float(correct),
            parsed_synonym_values=values,
            accuracy=correct,
            set_overlap=set_overlap(values, expected),
            original_term_minefield_hit=body.minefield_label_value in set(values) - set(expected),
            order_instruction_following_failure=not correct and sorted(values) == sorted(expected),
        )


def word_value(word: str) -> int:
    """The sum of the word's code points."""
    return sum(map(ord, word))


def submitted_values(response: NeMoGymResponse) -> list[int]:
    """The values of the last ``extract_synonym_values`` call; none if there is no such call or it is malformed."""
    calls = [item for item in response.output if item.type == "function_call" and item.name == "extract_synonym_values"]
    if not calls:
        return []
    try:
        return ExtractSynonymValuesRequest.model_validate(json.loads(calls[-1].arguments)).synonym_values
    except (ValidationError, json.JSONDecodeError):
        return []


def set_overlap(values: Sequence[int], expected: Sequence[int]) -> float:
    """The share of the expected values that were handed in, in whatever order."""
    wanted = set(expected)
    return len(wanted & set(values)) / len(wanted) if wanted else 1.0


if __name__ == "__main__":
    ExampleMultiStepServer.run_webserver()
