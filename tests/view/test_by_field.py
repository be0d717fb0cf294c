"""What rewards depend on, by column."""

import random

import pytest

from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.statistics import overall
from nemo_gym.view.by_field import fields_of_run
from nemo_gym.view.rollout import compare_fields, rows_of_run
from nemo_gym.view.selection import Query, select

KINDS = ("algebra", "geometry", "logic", "words")


def planted(record, chances, seed):
    """Rollouts whose chance of success depends on the kind of their task alone."""
    draw = random.Random(seed)
    rows = []
    for task in range(80):
        kind = KINDS[task % 4]
        for n in range(4):
            row = record(task, n, float(draw.random() < chances[kind]))
            rows.append(row | {"kind": kind, "coin": draw.choice(["heads", "tails"]), "length": draw.random()})
    return rows


@pytest.fixture
def two(write, record, library):
    before = dict.fromkeys(KINDS, 0.6)
    runs = [planted(record, before, 1), planted(record, before | {"logic": 0.1}, 2)]
    return library(*(write(f"{name}.jsonl", run) for name, run in zip("ab", runs, strict=True))).snapshot()


def values_of(field):
    return {value["value"]: value for value in field["values"]}


def test_the_column_that_explains_a_change_comes_first(two):
    everything = select(two, Query())
    told = compare_fields(two, rows_of_run(everything, 0), rows_of_run(everything, 1))
    kind = told["fields"][0]
    assert kind["name"] == "kind"
    cause = kind["values"][0]
    assert cause["value"] == "logic"
    assert cause["contribution"] / told["difference"] > 0.6
    assert [side["count"] for side in cause["sides"]] == [80, 80]
    for side in cause["sides"]:
        assert side["interval"][0] < side["mean"] < side["interval"][1]


def test_the_contributions_of_every_column_add_up_to_the_change(two):
    everything = select(two, Query())
    told = compare_fields(two, rows_of_run(everything, 0), rows_of_run(everything, 1))
    assert told["difference"] == pytest.approx(told["means"][1] - told["means"][0])
    assert len(told["fields"]) > 3
    for field in told["fields"]:
        assert sum(value["contribution"] for value in field["values"]) == pytest.approx(told["difference"])


def test_one_run_says_what_separates_high_rewards_from_low_ones(two):
    told = fields_of_run(select(two, Query(filter='file == "b.jsonl"')))
    field = next(field for field in told["fields"] if not field["repeats"])
    assert field["name"] == "kind"
    assert values_of(field)["logic"]["contribution"] < 0
    coin = next(field for field in told["fields"] if field["name"] == "coin")
    assert coin["strength"] < 0.05


def test_a_mean_by_field_is_the_mean_of_the_metrics(two, write, tmp_path):
    told = fields_of_run(select(two, Query(filter='file == "a.jsonl"')))
    builder = MetricsBuilder()
    builder.add_file(tmp_path / "a.jsonl")
    assert told["means"] == [pytest.approx(overall(builder.table())["mean/reward"])]
    for field in told["fields"]:
        assert sum(value["sides"][0]["count"] for value in field["values"]) == told["rollouts"][0] == 320


def test_numbers_are_put_into_buckets_that_a_filter_can_name(two):
    told = fields_of_run(select(two, Query()))
    length = next(field for field in told["fields"] if field["name"] == "length")
    assert [value["from"] for value in length["values"]][1:] == [value["to"] for value in length["values"]][:-1]
    for value in length["values"][1:-1]:
        found = select(two, Query(filter=f"length >= {value['from']} and length < {value['to']}"))
        assert len(found) == value["sides"][0]["count"]


def test_a_column_that_repeats_the_reward_comes_last(write, record, library):
    rows = [
        record(task, n, float(n % 2)) | {"passed": n % 2 == 1, "side": n // 2}
        for task in range(9)
        for n in (0, 1, 2, 3)
    ]
    told = fields_of_run(select(library(write("a.jsonl", rows)).snapshot(), Query()))
    assert told["fields"][-1]["name"] == "passed"
    assert told["fields"][-1]["repeats"]
    assert [value["value"] for value in told["fields"][-1]["values"]] in ([False, True], [True, False])


def test_runs_without_common_tasks_have_no_fields(write, record, library):
    files = [write("a.jsonl", [record(0, 0, 1.0)]), write("b.jsonl", [record(5, 0, 0.0)])]
    snapshot = library(*files).snapshot()
    everything = select(snapshot, Query())
    told = compare_fields(snapshot, *(rows_of_run(everything, run) for run in (0, 1)), pair_by="index")
    assert told["fields"] == []
