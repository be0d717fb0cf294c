import json
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.config.environments import Routing
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.plan import PlanSource, PlanSpec, TaskError, find_input, plan_rollouts, resolve_overrides
from nemo_gym.rollouts.store.output import Request
from nemo_gym.rollouts.tasks import MissingFieldError, PromptConfig, PromptError, Shard, Task


def tasks(*rows: dict[str, Any]) -> list[Task]:
    return [Task(number, json.dumps(row).encode(), row) for number, row in enumerate(rows)]


def task(text: str = "x", **fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": text}, **fields}


def keys(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows]


texts = st.sampled_from("abc")
given_indices = st.none() | st.integers(0, 3)
agents = st.sampled_from(["alpha", "beta"])
rows = st.lists(st.tuples(texts, given_indices, agents), max_size=12)


def _rows(drawn: list[tuple[str, int | None, str]]) -> list[dict[str, Any]]:
    return [
        task(text, agent_ref={"name": agent}, **({} if index is None else {"_ng_task_index": index}))
        for text, index, agent in drawn
    ]


@given(rows, st.integers(1, 3))
def test_every_rollout_has_a_key_of_its_own_and_no_task_has_gaps(drawn: list[Any], repeats: int) -> None:
    plan = list(plan_rollouts(tasks(*_rows(drawn)), PlanSpec(repeats=repeats)))
    assert len(plan) == len(drawn) * repeats
    assert len(set(keys(plan))) == len(plan)
    for index, count in Counter(index for index, _ in keys(plan)).items():
        assert sorted(r for i, r in keys(plan) if i == index) == list(range(count))


@given(rows, st.integers(1, 3))
def test_rollouts_stand_in_the_order_of_the_file(drawn: list[Any], repeats: int) -> None:
    plan = list(plan_rollouts(tasks(*_rows(drawn)), PlanSpec(repeats=repeats)))
    texts_in_order = [text for text, _, _ in drawn for _ in range(repeats)]
    assert [row["responses_create_params"]["input"] for row in plan] == texts_in_order


@given(rows, st.integers(1, 3), st.integers(0, 2), rows)
def test_more_repeats_and_more_rows_keep_the_keys_that_there_were(
    drawn: list[Any], repeats: int, extra: int, more: list[Any]
) -> None:
    """A collection can be extended only because this holds (for tasks that stand in one line)."""
    unique = list({text: (text, None, agent) for text, _, agent in drawn}.values())
    fresh = [(f"new {text}", None, agent) for text, _, agent in more]
    before = {k: r for r in plan_rollouts(tasks(*_rows(unique)), PlanSpec(repeats=repeats)) for k in keys([r])}
    after = plan_rollouts(tasks(*_rows(unique + fresh)), PlanSpec(repeats=repeats + extra))
    later = {k: r for r in after for k in keys([r])}
    assert before.items() <= later.items()


@given(rows, st.dictionaries(agents, st.integers(1, 3)), st.none() | st.integers(1, 3))
def test_repeats_by_agent(drawn: list[Any], repeats: dict[str, int], default: int | None) -> None:
    spec = PlanSpec(repeats=repeats | ({} if default is None else {"_default": default}))
    named = {agent for _, _, agent in drawn}
    if default is None and not named <= repeats.keys():
        with pytest.raises(TaskError, match="_default"):
            list(plan_rollouts(tasks(*_rows(drawn)), spec))
        return
    if repeats.keys() <= named:
        plan = list(plan_rollouts(tasks(*_rows(drawn)), spec))
        assert len(plan) == sum(repeats.get(agent, default or 0) for _, _, agent in drawn)


def test_an_override_replaces_a_parameter_as_a_whole() -> None:
    row = {"responses_create_params": {"input": "x", "reasoning": {"effort": "low", "summary": "auto"}}}
    spec = PlanSpec(agent="a", overrides={"reasoning": {"effort": "high"}, "top_p": None})
    (planned,) = plan_rollouts(tasks(row), spec)
    assert planned["responses_create_params"] == {"input": "x", "reasoning": {"effort": "high"}, "top_p": None}
    assert row["responses_create_params"]["reasoning"] == {"effort": "low", "summary": "auto"}


def test_seeds_differ_between_the_rollouts_of_a_task() -> None:
    plan = plan_rollouts(tasks(task()), PlanSpec(agent="a", repeats=2, seeded=True))
    bodies = [row["responses_create_params"]["metadata"]["extra_body"] for row in plan]
    assert bodies == ['{"seed": 0}', '{"seed": 1}']


@pytest.mark.parametrize("extra_body", ["not json", "[1]"])
def test_a_seed_has_nowhere_to_go(extra_body: str) -> None:
    row = {"responses_create_params": {"input": "x", "metadata": {"extra_body": extra_body}}}
    with pytest.raises(TaskError, match="row 0"):
        list(plan_rollouts(tasks(row), PlanSpec(agent="a", seeded=True)))


def test_all_rows_without_an_agent_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"\[0, 2\]"):
        list(plan_rollouts(tasks(task(), task(agent_ref={"name": "a"}), task(agent_ref=None)), PlanSpec()))


def test_all_rows_without_parameters_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"\[0, 1\].*responses_create_params"):
        list(plan_rollouts(tasks({}, {"responses_create_params": None}), PlanSpec(agent="a")))


def test_an_index_has_to_be_an_integer() -> None:
    with pytest.raises(TaskError, match=r"\[0\].*_ng_task_index"):
        list(plan_rollouts(tasks(task(_ng_task_index="seven")), PlanSpec(agent="a")))


def test_an_index_may_be_the_text_of_a_number() -> None:
    assert keys(plan_rollouts(tasks(task(_ng_task_index="7"), task(_ng_task_index=7)), PlanSpec(agent="a"))) == [
        *[(7, 0), (7, 1)]
    ]


def test_conflicts_with_the_template_come_before_fields_it_lacks() -> None:
    spec = PlanSpec(agent="a", prompt=PromptConfig(user="{question}"))
    with pytest.raises(MissingFieldError, match="question"):
        list(plan_rollouts(tasks({"x": 1}), spec))
    with pytest.raises(PromptError, match=r"\[1\]"):
        list(plan_rollouts(tasks({"x": 1}, task("given")), spec))


def test_an_agent_that_no_row_names_is_worth_a_warning() -> None:
    spec = PlanSpec(repeats={"alpha": 1, "alhpa": 2})
    with pytest.warns(UserWarning, match="alhpa"):
        list(plan_rollouts(tasks(task(agent_ref={"name": "alpha"})), spec))


@given(rows, st.integers(1, 5), st.integers(1, 3))
def test_shards_divide_the_plan_by_task_and_keep_every_key(drawn: list[Any], count: int, repeats: int) -> None:
    whole = list(plan_rollouts(tasks(*_rows(drawn)), PlanSpec(repeats=repeats)))
    shards = [
        list(plan_rollouts(tasks(*_rows(drawn)), PlanSpec(repeats=repeats, shard=Shard(index, count))))
        for index in range(count)
    ]
    assert all(row in whole for shard in shards for row in shard)
    assert sorted(keys([row for shard in shards for row in shard])) == sorted(keys(whole))
    tasks_of = [{task for task, _ in keys(shard)} for shard in shards]
    assert sum(map(len, tasks_of)) == len(set().union(*tasks_of))


@given(rows, rows, st.integers(1, 4), st.integers(0, 3))
def test_a_shard_keeps_its_rollouts_when_the_file_grows(
    drawn: list[Any], more: list[Any], count: int, nth: int
) -> None:
    spec = PlanSpec(shard=Shard(nth % count, count))
    before = list(plan_rollouts(tasks(*_rows(drawn)), spec))
    after = list(plan_rollouts(tasks(*_rows(drawn + more)), spec))
    assert after[: len(before)] == before


def test_a_shard_has_an_output_of_its_own_that_sorts() -> None:
    shard = Shard.parse("3/16")
    assert (str(shard), str(shard.output(Path("a/b.jsonl")))) == ("3/16", "a/b-03-of-16.jsonl")
    assert Shard.parse("0/1").output(Path("b.jsonl")).name == "b-0-of-1.jsonl"


@pytest.mark.parametrize("name", ["b-03-of-16", "rollouts-rs1-chunk3", "b_shard_03", "b.part3"])
def test_a_shard_keeps_a_name_that_says_which_part_it_is(name: str) -> None:
    assert Shard.parse("3/16").output(Path(f"{name}.jsonl")).name == f"{name}.jsonl"
    assert Shard.parse("5/16").output(Path(f"{name}.jsonl")).name == f"{name}-05-of-16.jsonl"


@pytest.mark.parametrize("text", ["16/16", "-1/4", "3", "", "1/0", "a/b", "1/2/3"])
def test_what_is_not_a_shard_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write 0/16 for the first of 16"):
        Shard.parse(text)


def test_agent_name_fills_rows_that_name_no_agent_and_others_keep_theirs(caplog: pytest.LogCaptureFixture) -> None:
    rows = tasks(task(), task(agent_ref={"name": "b"}), task(agent_ref={"name": "b"}, x=1), task(task_source="letters"))
    with caplog.at_level(logging.INFO):
        plan = list(plan_rollouts(rows, PlanSpec(agent="a", routing=Routing(sources={"letters": "c"}))))
    assert [row["agent_ref"]["name"] for row in plan] == ["a", "b", "b", "a"]
    assert "agent_name is a; rows that name another agent keep it: b (2)" in caplog.text


def test_a_row_that_names_its_source_goes_to_the_agent_of_that_source() -> None:
    routing = Routing(sources={"letters": "c"})
    plan = plan_rollouts(tasks(task(task_source="letters"), task()), PlanSpec(routing=routing, default_agent="d"))
    assert [row["agent_ref"]["name"] for row in plan] == ["c", "d"]


def test_a_whole_task_goes_where_environment_server_routes_say() -> None:
    whole = {"task_id": {"taskset": "e:t", "task_id": "1"}, "task_input": {"x": 1}}
    routing = Routing(tasksets={"e:t": "door"}, agents={"door": "a"})
    [row] = plan_rollouts(tasks(whole), PlanSpec(routing=routing))
    assert (row["agent_ref"], row["task_input"]) == ({"name": "a"}, {"x": 1})
    with pytest.raises(ValueError, match=r"rows \[0\].*environment_server_routes has those of \[\]"):
        list(plan_rollouts(tasks(whole), PlanSpec()))


# ---- what a plan is made from ----------------------------------------------------------------------------------------
def test_an_input_that_is_not_a_file_of_tasks_is_named(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"the input .*tasks is a folder"):
        find_input(str(tmp_path / "tasks"))
    with pytest.raises(ConfigError, match="not a regular file"):
        find_input(str(tmp_path / "pipe"))
    with pytest.raises(ConfigError, match="does not exist"):
        find_input(str(tmp_path / "nothing.jsonl"))
    (tmp_path / "tasks.jsonl").touch()
    assert find_input(str(tmp_path / "tasks.jsonl")) == tmp_path / "tasks.jsonl"


def test_overrides_refer_to_their_siblings() -> None:
    assert resolve_overrides({"temperature": 0.5, "top_p": "${temperature}"}) == {"temperature": 0.5, "top_p": 0.5}
    with pytest.raises(ConfigError, match="responses_create_params can't be resolved"):
        resolve_overrides({"top_p": "${nothing}"})


def test_skills_are_noted_in_every_row_and_only_if_there_are_some() -> None:
    ref = {"hash": "abc", "path": "skills"}
    assert [row["skills_ref"] for row in plan_rollouts(tasks(task()), PlanSpec(agent="a", skills_ref=ref))] == [ref]
    assert all("skills_ref" not in row for row in plan_rollouts(tasks(task()), PlanSpec(agent="a")))


@pytest.mark.parametrize(
    "spec",
    [
        {"overrides": {"top_p": 1}},
        {"prompt": PromptConfig(user="{question}")},
        {"skills_ref": {"hash": "abc"}},
        {"seeded": True},
    ],
)
def test_a_whole_task_of_an_environment_server_is_not_changed(spec: dict[str, Any]) -> None:
    routing = Routing(tasksets={"sums": "server"}, agents={"server": "agent"})
    episode = {"task_id": {"taskset": "sums", "task_id": "1"}, "task_input": {"x": 1}}
    (row,) = plan_rollouts(tasks(episode), PlanSpec(routing=routing))
    assert row["agent_ref"] == {"name": "agent"}
    with pytest.raises(ConfigError):
        list(plan_rollouts(tasks(episode), PlanSpec(routing=routing, **spec)))


def test_a_request_names_everything_that_shapes_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.touch()
    plain = {
        "limit": None,
        "agent_name": None,
        "num_repeats": 1,
        "num_repeats_add_seed": False,
        "responses_create_params": {},
        "prompt": None,
        "skills": None,
    }
    assert PlanSource(str(path), 0, PlanSpec()).request == Request(plain, path, 0)
    spec = PlanSpec(
        agent="a",
        repeats={"a": 3},
        overrides={"top_p": 1},
        seeded=True,
        skills_ref={"hash": "abc"},
        prompt=PromptConfig(user="{question}"),
        shard=Shard(1, 2),
    )
    found = PlanSource(str(path), 5, spec).request
    assert (found.input, found.limit, found.settings["limit"], found.settings["agent_name"]) == (path, 5, 5, "a")
    assert (found.settings["num_repeats"], found.settings["num_repeats_add_seed"]) == ({"a": 3}, True)
    assert (found.settings["responses_create_params"], found.settings["skills"]) == ({"top_p": 1}, "abc")
    assert found.settings["prompt"]["user"] == "{question}"
    assert found.settings["shard"] == str(Shard(1, 2))
    assert PlanSource(str(path), None, PlanSpec(default_agent="b")).request.settings["agent_name"] == "b"
