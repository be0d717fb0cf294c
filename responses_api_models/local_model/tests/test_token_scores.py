"""Scores are matched with the tokens they belong to."""

from typing import Any

import pytest

from responses_api_models.local_model.model import align


def score(token: int, text: str, logprob: float) -> dict[str, Any]:
    return {"id": token, "bytes": list(text.encode()), "logprob": logprob}


@pytest.mark.parametrize(
    ("tokens", "scores", "expected"),
    [
        ([1, 2], [score(1, "a", -1), score(2, "b", -2)], [-1, -2]),
        ([7, 8, 9, 2], [score(9, "👩", -1), score(2, "", -2)], [None, None, -1, -2]),
        ([5, 6, 6, 2], [score(6, "\u3000", -1), score(2, "", -2)], [None, None, -1, -2]),
        ([6, 6, 2], [score(6, "é", -1), score(6, "é", -3), score(2, "", -2)], [-1, -3, -2]),
        ([1, 37], [score(1, "a", -1)], [-1, None]),
        ([1, 2, 3], [score(9, "x", -1)], [None, None, None]),
        ([], [], []),
    ],
    ids=["one each", "an emoji", "equal halves", "whole letters", "a stop word", "nonsense", "nothing"],
)
def test_scores_find_their_tokens(tokens: list[int], scores: list[dict[str, Any]], expected: list[Any]) -> None:
    assert align(tokens, scores) == expected
