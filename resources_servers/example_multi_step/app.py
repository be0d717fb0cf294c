"""Several dependent tool calls: look up a value for each synonym, then submit all values in the order given.

Two mistakes are distinguished from plain failure: looking up the word itself instead of its synonyms (the minefield),
and submitting the right values in the wrong order.
"""

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

LOOK_UP = "get_synonym_value"
SUBMIT = "extract_synonym_values"


class Lookup(BaseModel):
    """Arguments of ``get_synonym_value``."""

    synonym: str


class WordValue(BaseModel):
    """Result of ``get_synonym_value``."""

    synonym_value: int


class Submission(BaseModel):
    """Arguments of ``extract_synonym_values``."""

    synonym_values: list[int]


class Receipt(BaseModel):
    """Result of ``extract_synonym_values``: the submission arrived, whether or not it is right."""

    success: bool = True


class SynonymTask(BaseRunRequest):
    """A row of the dataset."""

    id: int | str
    expected_synonym_values: list[int]
    expected_synonyms: list[str]
    minefield_label: str
    minefield_label_value: int


class SynonymRollout(SynonymTask, BaseVerifyRequest):
    """A row with the agent's response."""


class ScoredSynonyms(SynonymRollout, BaseVerifyResponse):
    """The row with its reward and the reasons for it."""

    parsed_synonym_values: list[int]
    accuracy: bool
    set_overlap: float
    original_term_minefield_hit: bool
    order_instruction_following_failure: bool


class SynonymEnvironment(SimpleResourcesServer):
    """Gives every word a value and scores the last submission."""

    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        """Serve both tools."""
        app = super().setup_webserver()
        app.add_api_route(f"/{LOOK_UP}", self.look_up, methods=["POST"])
        app.add_api_route(f"/{SUBMIT}", self.submit, methods=["POST"])
        return app

    async def look_up(self, lookup: Lookup) -> WordValue:
        """Answer one call of ``get_synonym_value``."""
        return WordValue(synonym_value=word_value(lookup.synonym))

    async def submit(self, submission: Submission) -> Receipt:
        """Confirm a submission. ``verify`` reads it from the call in the response, so nothing is stored."""
        del submission
        return Receipt()

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: SynonymRollout
    ) -> ScoredSynonyms:
        """Reward exactly the expected values in the expected order."""
        values, expected = last_submission(body.response), body.expected_synonym_values
        correct = values == expected
        return ScoredSynonyms(
            **dict(body),
            reward=float(correct),
            parsed_synonym_values=values,
            accuracy=correct,
            set_overlap=set_overlap(values, expected),
            original_term_minefield_hit=body.minefield_label_value in set(values) - set(expected),
            order_instruction_following_failure=not correct and sorted(values) == sorted(expected),
        )


def word_value(word: str) -> int:
    """Sum the code points of a word."""
    return sum(map(ord, word))


def last_submission(response: NeMoGymResponse) -> list[int]:
    """Read the values that were submitted last; a missing or malformed submission counts as empty."""
    for item in reversed(response.output):
        if item.type == "function_call" and item.name == SUBMIT:
            try:
                return Submission.model_validate_json(item.arguments).synonym_values
            except ValidationError:
                break
    return []


def set_overlap(values: Sequence[int], expected: Sequence[int]) -> float:
    """Compute the share of the expected values that were submitted, in whatever order."""
    wanted = set(expected)
    return len(wanted & set(values)) / len(wanted) if wanted else 1.0


if __name__ == "__main__":
    SynonymEnvironment.run_webserver()
