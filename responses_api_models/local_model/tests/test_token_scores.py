"""Scores find their tokens, and true tokens their way into the next prompt."""

from typing import Any

import pytest

from responses_api_models.local_model.token_scores import align, continue_prompt


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


EOS = 2


def test_the_true_tokens_replace_what_was_tokenized_anew() -> None:
    whole = [10, EOS, 11, 12, 13, EOS, 20, EOS, 30]
    assert continue_prompt([10, EOS, 99, EOS], whole, 2, EOS) == [10, EOS, 99, EOS, 20, EOS, 30]


def test_an_answer_that_was_cut_off_is_ended() -> None:
    assert continue_prompt([10, EOS, 99], [10, EOS, 11, EOS, 20], 2, EOS) == [10, EOS, 99, EOS, 20]


@pytest.mark.parametrize(("turns", "eos"), [(0, EOS), (3, EOS), (1, None)])
def test_without_visible_ends_nothing_can_be_carried(turns: int, eos: int | None) -> None:
    assert continue_prompt([1], [10, EOS, 20, EOS], turns, eos) is None
