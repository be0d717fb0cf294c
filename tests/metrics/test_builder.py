"""One pass over rollouts: what is kept, what is refused, and that the fast way gives what the general way gives."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.io.json import decode, read_blocks
from nemo_gym.metrics.aggregate import task_entries
from nemo_gym.metrics.builder import BadLine, MetricsBuilder
from nemo_gym.metrics.statistics import overall
from nemo_gym.metrics.table import RolloutTable


def rollout(task: int, repeat: int, **fields: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": repeat, **fields}


def table_of_records(records: list[Any]) -> RolloutTable:
    builder = MetricsBuilder()
    for record in records:
        builder.add(record)
    return builder.table()


def lines_of(records: list[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def table_of_lines(records: list[Any]) -> RolloutTable:
    builder = MetricsBuilder()
    assert builder.add_block(lines_of(records)) == []
    return builder.table()


def report(table: RolloutTable) -> Any:
    return (
        overall(table),
        list(task_entries(table)),
        {name: column.plain(0, len(table)) for name, column in table.transcript.items()},
        {name: column.present.tolist() for name, column in table.transcript.items()},
    )


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)  # also tells integers from floats and finds NaN equal to itself


REALISTIC = [
    rollout(
        task,
        repeat,
        responses_create_params={"input": [{"role": "user", "content": "hé"}]},
        response={
            "output": [
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
                {"type": "function_call_output", "call_id": "1", "output": "7"},
                {"type": "message", "role": "assistant", "content": []},
            ],
            "usage": {"input_tokens": 10 * task + repeat, "total_tokens": 20, "input_tokens_details": {"cached": 1}},
        },
        reward=float(repeat % 2),
        ok=repeat == 1,
        label="x",
        parts=[1, 2],
        agent_ref={"name": "beta" if task % 2 else "alpha"},
    )
    for task in range(5)
    for repeat in range(4)
]


def test_lines_and_records_give_the_same_table() -> None:
    assert same(report(table_of_lines(REALISTIC)), report(table_of_records(REALISTIC)))


def test_tool_calls_and_turns_are_counted_in_the_transcript() -> None:
    table = table_of_lines(REALISTIC)
    assert set(table.transcript["tool_calls"].values.tolist()) == {1.0}
    assert set(table.transcript["turns"].values.tolist()) == {2.0}


def test_agents_are_kept_apart() -> None:
    builder = MetricsBuilder()
    builder.add_block(lines_of([*REALISTIC, rollout(9, 0, reward=1.0)]))
    assert builder.agents == ["alpha", "beta"]
    assert sorted(set(builder.table_of("beta").task.tolist())) == [1, 3]
    assert builder.table_of(None).task.tolist() == [9]
    assert len(builder.table_of("gamma")) == 0
    assert len(builder.table()) == 21


def test_a_file_is_read_in_blocks_of_whole_lines(tmp_path: Path) -> None:
    long = rollout(0, 0, reward=1.0, text="x" * 600_000)
    path = tmp_path / "r.jsonl"
    path.write_bytes(lines_of([long, rollout(0, 1, reward=0.0, text="y")]).rstrip(b"\n"))
    assert b"".join(bytes(block) for block in read_blocks(path)) == path.read_bytes()
    builder = MetricsBuilder()
    assert builder.add_file(path) == []
    assert overall(builder.table())["mean/reward"] == 0.5


def test_an_empty_file_has_no_rollouts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"")
    builder = MetricsBuilder()
    assert builder.add_file(path) == []
    assert len(builder.table()) == 0
    assert overall(builder.table()) == {}


def test_unreadable_lines_are_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    good = lines_of(REALISTIC)
    path = tmp_path / "r.jsonl"
    path.write_bytes(
        good[: good.index(b"\n") + 1]
        + b"\n"
        + b'{"_ng_task_index": 0, "_ng_rol\n'
        + b"[1, 2]\n"
        + b'{"_ng_task_index": "x", "reward": 1}\n'
        + b'{"text": "\xff"}\n'
        + good[good.index(b"\n") + 1 :]
        + b'{"reward": 1'
    )
    builder = MetricsBuilder()
    bad = builder.add_file(path)
    assert [line.line for line in bad] == [3, 4, 5, 6, 26]
    assert all(isinstance(line, BadLine) and line.reason for line in bad)
    assert "_ng_task_index must be a whole number, not 'x'" in bad[2].reason
    assert same(report(builder.table()), report(table_of_records(REALISTIC)))


@pytest.mark.parametrize("index", ["one", 1.5, True, [1], -1, 2**63])
def test_an_index_that_is_no_whole_number_is_refused(index: Any) -> None:
    builder = MetricsBuilder()
    with pytest.raises(ValueError, match=r"_ng_rollout_index (must be a whole number|is out of range)"):
        builder.add(rollout(0, index, reward=1.0))
    assert len(builder) == 0


def test_a_whole_float_is_an_index() -> None:
    assert list(table_of_lines([{"_ng_task_index": 2.0, "_ng_rollout_index": 3.0, "reward": 1}]).keys()) == [(2, 3)]


def test_missing_indices_are_task_0_and_the_next_free_rollout() -> None:
    records = [{"reward": 0.1}, rollout(0, 1, reward=0.2), {"reward": 0.3}, {"_ng_task_index": 4, "reward": 0.4}]
    for table in (table_of_records(records), table_of_lines(records)):
        assert list(table.keys()) == [(0, 0), (0, 1), (0, 2), (4, 0)]
        assert table.top["reward"].values.tolist() == [0.1, 0.2, 0.3, 0.4]


def test_null_indices_count_as_missing() -> None:
    assert list(table_of_lines([rollout(None, None, reward=1)] * 2).keys()) == [(0, 0), (0, 1)]  # type: ignore[arg-type]


def test_a_key_that_occurs_twice_is_named() -> None:
    with pytest.raises(ValueError, match=r"\(3, 1\) and 1 more"):
        table_of_records([rollout(3, 1, reward=1), rollout(3, 1, reward=1), rollout(4, 0), rollout(4, 0)])


def test_nan_and_infinity_are_read_from_lines() -> None:
    builder = MetricsBuilder()
    builder.add_block(
        b'{"reward": NaN}\n{"reward": Infinity}\n{"reward": -Infinity, "x": 1e999}\n{"reward": 1.0, "x": 2}\n'
    )
    values = builder.table().top["reward"].values
    assert math.isnan(values[0])
    assert values[1:].tolist() == [math.inf, -math.inf, 1.0]
    stats = overall(builder.table())
    assert stats["max/reward"] == math.inf
    assert stats["min/reward"] == -math.inf
    assert stats["median/reward"] == 1.0
    assert "mean/reward" not in stats
    assert "std/reward" not in stats


def test_text_where_numbers_were_is_left_out() -> None:
    records = [rollout(0, i, reward=1.0, score=value) for i, value in enumerate([1, "2", None, [3], {"a": 4}, True])]
    for table in (table_of_records(records), table_of_lines(records)):
        assert table.top["score"].present.tolist() == [True, False, False, False, False, True]
        assert overall(table)["mean/score"] == 1.0


def test_integers_beyond_floats_stay_exact_in_the_rollouts() -> None:
    big = [2**53 + 1, 10**400, -(10**400), 3]
    records = [rollout(0, i, reward=1.0, big=value) for i, value in enumerate(big)]
    for table in (table_of_records(records), table_of_lines(records)):
        infos = next(task_entries(table))["rollout_infos"]
        assert [info["big"] for info in infos] == big
        assert overall(table)["max/big"] == math.inf


def test_a_usage_field_that_is_no_number_hides_the_field_of_the_record() -> None:
    records = [
        rollout(0, 0, reward=1.0, total_tokens=7, response={"usage": {"total_tokens": None}}),
        rollout(0, 1, reward=1.0, total_tokens=9, response={"usage": {"total_tokens": 200}}),
    ]
    for table in (table_of_records(records), table_of_lines(records)):
        assert overall(table)["mean/total_tokens"] == 200.0
        infos = next(task_entries(table))["rollout_infos"]
        assert [info["total_tokens"] for info in infos] == [7, 9]


def test_rewards_that_are_no_numbers_are_shown_as_they_were() -> None:
    records = [
        rollout(0, i, **({} if value is ... else {"reward": value})) for i, value in enumerate([1.0, None, "x", ...])
    ]
    for table in (table_of_records(records), table_of_lines(records)):
        infos = next(task_entries(table))["rollout_infos"]
        assert [info.get("reward", "absent") for info in infos] == [1.0, None, "x", "absent"]
        assert [list(info)[3:4] for info in infos[:3]] == [["reward"]] * 3


def test_old_files_have_their_transcript_at_the_top() -> None:
    records = [rollout(0, i, reward=1.0, output=[{"type": "function_call"}] * i) for i in range(3)]
    for table in (table_of_records(records), table_of_lines(records)):
        assert table.transcript["tool_calls"].values.tolist() == [0.0, 1.0, 2.0]


def test_without_a_transcript_nothing_is_counted() -> None:
    records = [rollout(0, i, reward=1.0, response={"usage": {"total_tokens": 3}}) for i in range(3)]
    for table in (table_of_records(records), table_of_lines(records)):
        assert table.transcript == {}


def test_two_objects_on_one_line_are_not_a_line() -> None:
    builder = MetricsBuilder()
    builder.add_block(lines_of(REALISTIC))
    line = lines_of(REALISTIC[:1]).strip()
    assert len(builder.add_block(line + line + b"\n")) == 1


def test_memory_does_not_hold_records() -> None:
    builder = MetricsBuilder()
    for start in range(0, 20_000, 1000):
        builder.add_block(lines_of([rollout(i, 0, reward=1.0, text="x" * 50) for i in range(start, start + 1000)]))
    assert len(builder) == 20_000
    assert len(builder._pending) < 4096
    assert np.array_equal(builder.table().task, np.arange(20_000))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(2**53, 2**70),
    st.floats(allow_nan=True, allow_infinity=True, width=32),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)
ITEMS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["reasoning", "function_call", "function_call_output", "message", "mcp_call"])},
            optional={"role": st.sampled_from(["assistant", "user", "system"]), "type2": VALUES},
        ),
        st.fixed_dictionaries({}, optional={"type": VALUES, "role": VALUES}),
        VALUES,
    ),
    max_size=4,
)
USAGE = st.dictionaries(st.sampled_from(["input_tokens", "score", "details"]), VALUES, max_size=3)
RESPONSES = st.one_of(
    VALUES,
    st.fixed_dictionaries({}, optional={"usage": st.one_of(VALUES, USAGE), "output": st.one_of(VALUES, ITEMS)}),
)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "reward": st.one_of(st.sampled_from([0.0, 1.0]), VALUES),
        "score": VALUES,
        "input_tokens": VALUES,
        "output": st.one_of(VALUES, ITEMS),
        "a b%": VALUES,
        "_ng_failure_class": VALUES,
        "response": RESPONSES,
        "responses_create_params": VALUES,
        "agent_ref": st.one_of(VALUES, st.fixed_dictionaries({"name": st.sampled_from(["a", "b", None, 3])})),
    },
)


@settings(deadline=None, max_examples=60)
@given(st.lists(RECORDS, max_size=6), st.integers(0, 3))
def test_the_fast_way_never_changes_a_result(records: list[dict[str, Any]], warm: int) -> None:
    records = [*REALISTIC[:warm], *records]
    records = [{**record, "_ng_task_index": i % 3, "_ng_rollout_index": i} for i, record in enumerate(records)]
    # the same lines twice: the second time all that can be learned is known
    lines, again = lines_of(records), lines_of([{**r, "_ng_rollout_index": 100 + i} for i, r in enumerate(records)])
    fast, slow = MetricsBuilder(), MetricsBuilder()
    for block in (lines, again):
        fast.add_block(block)
        for line in block.splitlines():
            slow.add(decode(line))
    assert fast.agents == slow.agents
    assert same(report(fast.table()), report(slow.table()))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "\x1f", "\u2028", "é", "", " "])
def test_fields_and_items_of_any_name_are_read(name: str) -> None:
    item = {"type": f"{name}_call"}
    records = [rollout(0, i, **{name: i}, response={"usage": {name: i}, "output": [item]}) for i in range(3)]
    assert same(report(table_of_lines(records)), report(table_of_records(records)))


def test_names_written_with_escapes_are_the_same_names() -> None:
    builder = MetricsBuilder()
    builder.add_block(b'{"reward": 1, "x": 2}\n' * 2 + b'{"r\\u0065ward": 3, "x": 4}\n')
    assert builder.table().top["reward"].values.tolist() == [1.0, 1.0, 3.0]


def test_the_parts_of_a_reward_are_metrics_of_their_own(tmp_path: Path) -> None:
    records = [
        {"_ng_task_index": n, "reward": 1.5, "reward_components": {"kept": 1.0, "answered": n / 2, "note": "x"}}
        for n in range(3)
    ]
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    builder = MetricsBuilder()
    assert builder.add_file(path) == []
    means = overall(builder.table())
    assert (means["mean/reward_components/kept"], means["mean/reward_components/answered"]) == (1.0, 0.5)
    assert "mean/reward_components/note" not in means
