"""Dataset metrics against the standard library, and fields of every kind."""

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.data.dataset_metrics import DatasetTally, RunningStatistics, differences


def rounded(value: float) -> float:
    return round(value, 2 if abs(value) >= 1 else 3)


@given(st.lists(st.tuples(st.floats(-1e4, 1e4), st.integers(1, 3)), min_size=1))
def test_numbers_that_come_one_by_one_have_the_statistics_of_all(values: list[tuple[float, int]]) -> None:
    numbers = RunningStatistics()
    for value, weight in values:
        numbers.add(value, weight)
    flat = [value for value, weight in values for _ in range(weight)]
    spread = statistics.stdev(flat) if len(flat) > 1 else 0.0
    report = numbers.report()
    assert report["Total # non-null values"] == len(flat)
    assert report["Average"] == pytest.approx(rounded(statistics.fmean(flat)), abs=0.011)
    assert report["Standard deviation"] == pytest.approx(rounded(spread), abs=0.011)
    assert (report["Min"], report["Max"]) == (rounded(min(flat)), rounded(max(flat)))


def tally_of(*rows: dict[str, Any]) -> dict[str, Any]:
    tally = DatasetTally()
    for row in rows:
        tally.add({"responses_create_params": {"input": "x"}, **row})
    return tally.report()


def test_a_field_of_numbers_and_texts_has_both_descriptions() -> None:
    report = tally_of({"a": 1}, {"a": "x"}, {"a": None}, {"a": [2, "x", [3]]}, {"a": {"b": 9}})
    assert report["a"] == {
        "Total # non-null values": 3, "Average": 2.0, "Min": 1.0, "Max": 3.0, "Standard deviation": 1.0,
        "unique_count": 1, "total_count": 2,
    }  # fmt: skip


def test_fields_without_numbers_or_texts_are_left_out() -> None:
    report = tally_of({"a": {"b": 1}, "n": None, "e": [], "i": math.inf, "h": 10**400, "agent_ref": {"name": "x"}})
    assert not {"a", "n", "e", "i", "h", "agent_ref"} & set(report)


def test_the_request_is_described() -> None:
    tally = DatasetTally()
    items = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    tally.add({"responses_create_params": {"input": items, "tools": [{}, {}], "temperature": 0.25}})
    tally.add({"responses_create_params": {"input": "one two"}})
    report = tally.report()
    assert report["Number of examples"] == 2
    assert report["Number of tools"]["Average"] == 2.0
    assert report["Number of turns"]["Average"] == 1.5
    assert report["Temperature"] == {
        "Total # non-null values": 1, "Average": 0.25, "Min": 0.25, "Max": 0.25, "Standard deviation": 0.0,
    }  # fmt: skip
    assert report["Json-dumped number of words (proxy for token count)"]["Min"] == 3.0


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        ({"a": 1.0}, {"a": 1.004, "b": 2}, 0),
        ({"a": 1.0}, {"a": 1.006}, 1),
        ({"a": 0.5}, {"a": 0.5004}, 0),
        ({"a": 0.5}, {"a": 0.501}, 1),
        ({"a": [1, {"x": 2}]}, {"a": [{"x": 2}, 1]}, 0),
        ({"a": [1, 1]}, {"a": [1, 2]}, 1),
        ({"a": {"b": 1}}, {"a": {}}, 1),
        ({"a": True}, {"a": 1}, 0),
        ({"a": None}, {"a": 0}, 1),
        ({"a": {"b": 1}}, {"a": 3}, 1),
    ],
)
def test_what_was_known_must_still_hold(old: Any, new: Any, count: int) -> None:
    assert len(list(differences(old, new))) == count
