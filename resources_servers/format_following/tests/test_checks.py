import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from resources_servers.format_following.checks import CHECK_KINDS, judge, parse_checks

THREE = "1. Apple\n2. Pear\n3. Fig"

# kind and parameters, texts that pass, texts that fail
CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        {"kind": "numbered_list", "count": 3},
        [THREE, "Fruits:\n\n1) Apple\n2) Pear\n3) Fig\nDone"],
        [
            "1. Apple\n2. Pear",
            THREE + "\n4. Plum",
            "1. Apple\n3. Pear\n2. Fig",
            "Apple\nPear\nFig",
            "1.Apple 2.Pear 3.Fig",
            "Fruits:\n1. -\n2. .\n3. _",
        ],
    ),
    (
        {"kind": "bullet_list", "count": 2},
        ["- ant\n- bee", "* ant\n* bee", "\u2022 ant\n\u2022 bee", "Insects:\n- ant\n- bee"],
        ["- ant", "ant\nbee", "- ant\n- bee\n- fly", "-ant\n-bee", "Insects:\n- .\n- !"],
    ),
    (
        {"kind": "comma_list", "count": 3},
        ["red, green, blue", "red,green,blue."],
        ["red, green", "red, green, blue,", "red,\ngreen, blue", "red, , blue"],
    ),
    ({"kind": "line_count", "count": 2}, ["a\nb", "a\n\nb\n"], ["a", "a\nb\nc"]),
    (
        {"kind": "sentence_count", "count": 2},
        ["It rains. I stay.", "Really?! Yes", '"Stop." He stopped.', "It costs 3.50 today. Fine."],
        ["It rains.", "One. Two. Three."],
    ),
    ({"kind": "word_count", "at_least": 2, "at_most": 3}, ["don't stop", "a well-known cat"], ["one", "a b c d"]),
    ({"kind": "word_count", "at_least": 2}, ["a b", "a b c d e"], ["a"]),
    ({"kind": "word_count", "at_most": 2}, ["a b", "a"], ["a b c"]),
    ({"kind": "word_length", "at_most": 4}, ["a tiny cat"], ["an elephant"]),
    (
        {"kind": "starts_with", "text": "In the"},
        ["In the end.", "in the end", '"In the end"'],
        ["In these days", "The end"],
    ),
    ({"kind": "ends_with", "text": "the sea"}, ["I like the sea.", "THE SEA!"], ["the sea is big", "at sea"]),
    ({"kind": "contains_word", "word": "cat"}, ["A cat", "Cat, cat"], ["cats", "concatenate"]),
    ({"kind": "contains_word", "word": "cat", "count": 2}, ["cat and CAT"], ["cat", "cat cat cat"]),
    ({"kind": "excludes_word", "word": "the"}, ["a cat", "then"], ["The cat"]),
    ({"kind": "excludes_letter", "letter": "e"}, ["a cat"], ["the cat", "E"]),
    ({"kind": "each_word_starts_with", "letter": "B"}, ["Big bears bite"], ["Big bears eat"]),
    ({"kind": "all_caps"}, ["STOP NOW!", "1. APPLE"], ["STOP now", "123"]),
    ({"kind": "all_lowercase"}, ["stop now!"], ["Stop now", "123"]),
    (
        {"kind": "quoted"},
        ['"Stop."', "\u201cStop\u201d", ' "Stop" '],
        ["Stop", '"Stop', 'He said "Stop"', '"A" and "B"'],
    ),
    ({"kind": "no_commas"}, ["red and blue"], ["red, blue"]),
    ({"kind": "one_of", "options": ["yes", "no"]}, ["Yes.", "no"], ["yes and no", "maybe", "yes it is"]),
    (
        {"kind": "json_keys", "keys": ["name", "age"]},
        ['{"name": "x", "age": 3}', '```json\n{"age": 1, "name": null}\n```'],
        [
            '{"name": "x"}',
            '{"name": 1, "age": 2, "b": 3}',
            '["name", "age"]',
            "name, age",
            '{"name": "x", "age": 3',
            "[" * 9999,
        ],
    ),
]


@pytest.mark.parametrize(("check", "passing", "failing"), CASES, ids=lambda case: str(case)[:60])
def test_texts_that_pass_and_fail(check: dict[str, Any], passing: list[str], failing: list[str]) -> None:
    [parsed] = parse_checks([check])
    assert [text for text in passing if not parsed.passes(text)] == []
    assert [text for text in failing if parsed.passes(text)] == []


@pytest.mark.parametrize("text", ["", "  \n ", "...", "-"])
@pytest.mark.parametrize("check", [case[0] for case in CASES], ids=str)
def test_an_answer_without_words_passes_nothing(check: dict[str, Any], text: str) -> None:
    assert not parse_checks([check])[0].passes(text)


def test_every_kind_has_cases() -> None:
    tested = {type(parse_checks([check])[0]) for check, _, _ in CASES}
    assert tested == set(CHECK_KINDS)
    assert len(CHECK_KINDS) >= 12


@pytest.mark.parametrize(
    ("checks", "reason"),
    [
        ([{"kind": "rhymes"}], "'rhymes' found using 'kind' does not match any of the expected tags: 'numbered_list'"),
        ([{"count": 3}], "Unable to extract tag using discriminator 'kind'"),
        (["numbered_list"], "valid dictionary"),
        ([{"kind": "numbered_list"}], "0.numbered_list.count\n  Field required"),
        ([{"kind": "numbered_list", "count": 0}], "greater than or equal to 1"),
        ([{"kind": "numbered_list", "count": "three"}], "valid integer"),
        (
            [{"kind": "all_caps"}, {"kind": "all_caps", "count": 3}],
            "1.all_caps.count\n  Extra inputs are not permitted",
        ),
        ([{"kind": "word_count"}], "give at_least, at_most or both"),
        ([{"kind": "word_count", "at_least": 5, "at_most": 3}], "at_least (5) is more than at_most (3)"),
        ([{"kind": "excludes_letter", "letter": "ab"}], "should match pattern"),
        ([{"kind": "contains_word", "word": "two words"}], "should match pattern"),
        ([{"kind": "ends_with", "text": "!"}], "should match pattern"),
        ([{"kind": "json_keys", "keys": []}], "at least 1 item"),
        ([], "at least 1 item"),
    ],
)
def test_a_check_that_is_none_is_refused_with_the_reason(checks: list[Any], reason: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_checks(checks)
    assert reason in str(caught.value)


def test_checks_are_judged_one_by_one() -> None:
    checks = parse_checks(
        [{"kind": "numbered_list", "count": 3}, {"kind": "all_caps"}, {"kind": "word_count", "at_most": 9}]
    )
    verdict = judge(THREE, checks)
    assert verdict.passed == ["numbered_list(count=3)", "word_count(at_most=9)"]
    assert verdict.failed == ["all_caps()"]


ANY_CHECK = st.sampled_from([case[0] for case in CASES])


@settings(deadline=None)
@given(st.text() | st.text('aAbe .,!?\n-*1234.)"{}:', max_size=80), st.lists(ANY_CHECK, min_size=1, max_size=4))
def test_any_text_gets_a_verdict_on_every_check(text: str, checks: list[dict[str, Any]]) -> None:
    verdict = judge(text, parse_checks(checks))
    assert len(verdict.passed) + len(verdict.failed) == len(checks)


@settings(deadline=None)
@given(st.integers(1, 20), st.lists(st.sampled_from(["ant", "bee", "fly"]), min_size=1, max_size=20))
def test_lists_are_counted(count: int, items: list[str]) -> None:
    numbered = "\n".join(f"{number}. {item}" for number, item in enumerate(items, start=1))
    bulleted = "\n".join(f"- {item}" for item in items)
    commas = ", ".join(items)
    for kind, text in (("numbered_list", numbered), ("bullet_list", bulleted), ("comma_list", commas)):
        assert parse_checks([{"kind": kind, "count": count}])[0].passes(text) == (len(items) == count)


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.integers(), min_size=1), st.text(min_size=1))
def test_json_objects_need_exactly_the_keys(value: dict[str, int], other: str) -> None:
    text = json.dumps({**value, "word": 1})
    assert parse_checks([{"kind": "json_keys", "keys": [*value, "word"]}])[0].passes(text)
    if other not in {*value, "word"}:
        assert not parse_checks([{"kind": "json_keys", "keys": [*value, "word", other]}])[0].passes(text)


@pytest.mark.parametrize(
    "unit", [".", "!?", ".'", ".)", '"', "a'", "a-", "- ", "1. ", "1", "\n", " ", "[", "{", "```\n", ","]
)
def test_long_runs_cost_time_in_proportion(unit: str) -> None:
    checks = parse_checks([check for check, _, _ in CASES])

    def cost(length: int) -> float:
        text = f"a {unit * (length // len(unit))}x"
        start = time.process_time()
        judge(text, checks)
        return time.process_time() - start

    # Linear work grows fourfold, quadratic work sixteenfold.
    assert min(cost(80_000) for _ in range(2)) < 9 * min(cost(20_000) for _ in range(3)) + 0.01
