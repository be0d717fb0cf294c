"""The filter language: what it means, what it refuses, and that its SQL and its test of a record always agree."""

import json
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.filters import FilterError, parse_filter
from nemo_gym.filters.columns import record_fields
from nemo_gym.filters.parser import DEEPEST, LONGEST, MOST_TERMS
from nemo_gym.filters.sql import Sql
from nemo_gym.schemas.record import Record

RECORD = Record(
    {
        "_ng_task_index": 4,
        "_ng_rollout_index": 1,
        "agent_ref": {"name": "math"},
        "reward": 0.5,
        "accuracy": True,
        "extracted_answer": "42",
        "judge": {"score": 0.25, "label": "weak", "text": "x" * 100},
        "answer": "forty-two",
        "notes": None,
        "odd name": 7,
        "responses_create_params": {"input": [{"role": "user", "content": "What is 6 times 7, in Würzburg?"}]},
        "response": {
            "output": [
                {"type": "function_call", "name": "multiply", "arguments": "{}", "call_id": "c"},
                {"type": "function_call_output", "call_id": "c", "output": "42"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is\n42."}]},
            ],
            "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        },
    }
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "reward < 1",
        "reward == 0.5",
        "0.2 < reward <= 0.5",
        "1 > reward",
        "accuracy == true",
        "accuracy != false",
        "task == 4 and rollout == 1",
        'agent == "math"',
        "agent == 'math'",
        'agent in ["code", "math"]',
        'agent not in ["code"]',
        'agent != "code" and not agent == "code"',
        'question contains "6 TIMES"',
        'question not contains "weather"',
        'question contains "Würz"',
        'answer == "It is 42."',
        'record.answer == "forty-two"',
        "judge.score < 0.5",
        'judge.label == "weak" or reward > 1',
        "judge.text is null",
        "failure is null",
        "failure == null",
        "not (failure is not null)",
        "notes is null and nothing is null",
        "reward in [0, 0.5, null]",
        "tokens == 15 and input_tokens > output_tokens",
        "tool_calls == 1 and turns == 2",
        "`odd name` == 7",
        'reward < 1 AND NOT agent == "x"',
        'extracted_answer == "42"',
        "extracted_answer != 42",
        "reward >= -1e3 and reward <= .5",
        'failure != "timeout"',
        "not failure > 1",
    ],
)
def test_a_filter_lets_a_rollout_through(text):
    assert parse_filter(text).matches(RECORD)


@pytest.mark.parametrize(
    "text",
    [
        "reward < 0.5",
        "reward > 0.5",
        'agent == "Math"',
        'reward == "0.5"',
        'agent > 1 or agent < 1 or agent == 1 or reward < "z"',
        "notes > 0 or notes <= 0 or notes == 0",
        'failure == "timeout"',
        'notes contains ""',
        'reward contains "5"',
        "1 == 2",
        'judge.score < 0.5 and judge.label == "strong"',
    ],
)
def test_a_filter_holds_a_rollout_back(text):
    assert not parse_filter(text).matches(RECORD)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("reward <", 8, "expected a column or a value, found the end"),
        ("reward", 6, "expected a comparison, found the end"),
        ("reward = 1", 7, "'=' is not an operator here"),
        ("reward < 1 && task == 2", 11, "'&&' is not an operator here"),
        ("(reward < 1", 11, "expected ')', found the end"),
        ("reward < 1) or", 10, "expected 'and', 'or' or the end, found ')'"),
        ("reward < 1 task == 2", 11, "expected 'and', 'or' or the end, found 'task'"),
        ('agent == "math', 9, 'the " is never closed'),
        ("agent in [math]", 10, "expected a value, found 'math'"),
        ("agent in []", 10, "expected a value, found ']'"),
        ("agent not == 1", 10, "expected 'in' or 'contains', found '=='"),
        ("agent is 3", 9, "expected null, found '3'"),
        ("reward < 1x", 9, "not a number"),
        ("reward ; 1", 7, "unexpected ';'"),
        ("not", 3, "expected a column or a value, found the end"),
        ("and reward < 1", 0, "expected a column or a value, found 'and'"),
    ],
)
def test_an_error_says_where_and_what_was_expected(text, position, message):
    with pytest.raises(FilterError) as caught:
        parse_filter(text)
    assert (caught.value.position, message in str(caught.value)) == (position, True), str(caught.value)
    assert f"(character {position + 1})" in str(caught.value)


def test_an_unknown_column_names_the_nearest_one():
    with pytest.raises(FilterError) as caught:
        parse_filter("task == 1 and rewrad < 0.5", {"reward", "task"})
    assert (caught.value.position, caught.value.hint) == (14, "Did you mean: 'reward'?")


def test_without_a_list_of_columns_an_unknown_one_is_null():
    assert parse_filter("nonsense is null").matches(RECORD)


@pytest.mark.parametrize(
    "text",
    [
        "(" * (DEEPEST + 1) + "a == 1" + ")" * (DEEPEST + 1),
        "not " * 2_000_0 + "a == 1",
        "not " * (DEEPEST + 1) + "a == 1",
        " or ".join(["a==1"] * (MOST_TERMS + 1)),
        f"a in [{','.join(['1'] * (MOST_TERMS + 5))}]",
        "a == '" + "x" * LONGEST + "'",
    ],
)
def test_a_filter_that_is_too_large_is_refused(text):
    with pytest.raises(FilterError):
        parse_filter(text)


def test_a_filter_at_the_limits_works():
    text = "(" * (DEEPEST - 1) + "a == 1" + ")" * (DEEPEST - 1)
    assert parse_filter(text).matches(Record({"a": 1}))
    assert parse_filter(" or ".join(["a==1"] * MOST_TERMS)).matches(Record({"a": 1}))


def test_what_was_written_never_becomes_sql():
    condition = parse_filter('agent == "x\' OR 1=1 --"').sql({"agent": Sql("agent")})
    assert condition.values == ("x' OR 1=1 --",)
    assert "OR" not in condition.text


def test_columns_that_are_not_in_the_record_can_be_added():
    assert parse_filter('file == "a.jsonl" and bytes > 5').matches(RECORD, file="a.jsonl", bytes=10)
    assert parse_filter("file is null").columns == ["file"]


def test_odd_records_have_columns_too():
    odd = {"big": 2**70, "nan": float("nan"), "nul": "a\0b", "half": "\ud800", "output": "no list"}
    fields = record_fields(Record(odd))
    assert fields["big"] == float(2**70)
    assert "nan" not in fields
    assert (fields["nul"], fields["half"]) == ("a�b", "?")
    assert fields["task"] == 0
    assert fields["rollout"] is None


def test_an_index_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="_ng_task_index"):
        record_fields(Record({"_ng_task_index": "four"}))


# ---- the SQL and the test agree ------------------------------------------------------------------------------------

NAMES = ["a", "b", "c"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "a", "A", "ab", "1", "é", "É", "x\ty", '"', "\\", "1.0", "true"]),
)


def literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else quoted(value)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t") + '"'


LITERALS = SCALARS.map(literal)
OPERANDS = st.one_of(st.sampled_from(NAMES), LITERALS)
COMPARISONS = st.one_of(
    st.tuples(OPERANDS, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "contains", "not contains"]), OPERANDS).map(
        " ".join
    ),
    st.tuples(OPERANDS, st.sampled_from(["<", "<="]), OPERANDS, st.sampled_from(["<", "!="]), OPERANDS).map(" ".join),
    st.tuples(OPERANDS, st.sampled_from(["in", "not in"]), st.lists(LITERALS, min_size=1, max_size=4)).map(
        lambda parts: f"{parts[0]} {parts[1]} [{', '.join(parts[2])}]"
    ),
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["is null", "is not null"])).map(" ".join),
)
FILTERS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        inner.map(lambda text: f"not ({text})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: f"({' '.join(parts)})"),
    ),
    max_leaves=6,
)
ROWS = st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, SCALARS)), min_size=1, max_size=8)


@given(text=FILTERS, rows=ROWS)
def test_sql_and_test_agree(text, rows):
    found = parse_filter(text, NAMES)
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE rows (number, a, b, c)")
    database.executemany(
        "INSERT INTO rows VALUES (?, ?, ?, ?)", [(i, *map(row.get, NAMES)) for i, row in enumerate(rows)]
    )
    condition = found.sql({name: Sql(name) for name in NAMES})
    selected = database.execute(
        f"SELECT number FROM rows WHERE {condition.text} ORDER BY number", condition.values
    ).fetchall()
    database.close()
    assert [number for (number,) in selected] == [i for i, row in enumerate(rows) if found.test(row)]


@given(text=st.text(max_size=30) | st.text(alphabet="ab<>=!()[] \"'`.,1not in and or null", max_size=40))
def test_any_text_is_understood_or_refused_with_a_place_in_it(text):
    assert 0 <= place_of_error(text) <= len(text)


def place_of_error(text: str) -> int:
    try:
        parse_filter(text)
    except FilterError as error:
        return error.position
    return 0
