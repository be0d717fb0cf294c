"""One row, one meaning: every reader of rows sees the same key, agent, reward, usage and task."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.exporting.records import ODD_INDEX, RolloutReader
from nemo_gym.exporting.sft import UnfitError
from nemo_gym.filters.columns import fixed_fields, plain_text
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.compare import read_contents
from nemo_gym.metrics.profile import keys_of, profile_tasks
from nemo_gym.rollouts.classify import outcome_of_record
from nemo_gym.rollouts.plan import PlanSpec, TaskError, plan_rollouts
from nemo_gym.rollouts.run_metrics import PlannedKeys
from nemo_gym.rollouts.store.history import History, read_completed
from nemo_gym.rollouts.store.outcome import Completed, PlannedRollout
from nemo_gym.rollouts.store.shards import Shards
from nemo_gym.rollouts.tally import read_spending
from nemo_gym.rollouts.tasks import Task
from nemo_gym.schemas.call_tokens import RolloutFormatError, read_calls
from nemo_gym.schemas.record import Record, Usage, outline_of
from nemo_gym.schemas.rows import MAX_ROLLOUTS, RolloutKey
from nemo_gym.training.sequences import sequence_of
from nemo_gym.view.index.parsing import FileSpan, parse_span

ITEM = {
    "type": "message",
    "role": "assistant",
    "content": [],
    "prompt_token_ids": [1, 2],
    "generation_token_ids": [3],
    "generation_log_probs": [-0.5],
}
ROW: dict[str, Any] = {
    "_ng_task_index": 3,
    "responses_create_params": {"input": [{"role": "user", "content": "2 + 2"}]},
    "response": {"output": [ITEM], "usage": {"input_tokens": 7, "output_tokens": 1, "total_tokens": 8}},
    "reward": 1.0,
    "agent_ref": {"name": "alpha"},
    "_ng_rollout_index": 0,
}
FOLDER = Path(tempfile.mkdtemp(prefix="records-"))
MISSING = object()
Seen = Callable[[dict[str, Any]], Any]


class RefusedError(Exception):
    """A reader does not take a row."""


def line_of(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"  # unlike ours, this writes NaN and infinities


def saved(row: dict[str, Any]) -> Path:
    path = FOLDER / "rollouts.jsonl"
    path.write_bytes(line_of(row))
    return path


def with_index(value: Any, name: str = "_ng_task_index") -> dict[str, Any]:
    row = {**ROW, name: value}
    return {key: given for key, given in row.items() if given is not MISSING}


# ---- what each reader sees ------------------------------------------------------------------------------------------
def planned_task(row: dict[str, Any]) -> int:
    try:
        return next(plan_rollouts([Task(0, b"", row)], PlanSpec()), {}).get("_ng_task_index")  # type: ignore[return-value]
    except TaskError:
        raise RefusedError from None


def stored_task(row: dict[str, Any]) -> int:
    history, path = History(), saved(row)
    if strays := read_completed(path, history):
        assert [(span.line, span.why) for span in strays] == [(1, "line without a usable key")]
        raise RefusedError
    return history.done.pop() // MAX_ROLLOUTS


def counted_task(row: dict[str, Any]) -> int:
    builder = MetricsBuilder()
    try:
        builder.add(row)
    except RolloutFormatError:
        raise RefusedError from None
    return next(iter(builder.table().keys())).task


def decoded_task(row: dict[str, Any]) -> int:
    """The fast way, which has learned the shape from other lines."""
    builder = MetricsBuilder()
    builder.add_block(line_of({**ROW, "_ng_task_index": -1}))
    if bad := builder.add_block(line_of(row), first_line=2):
        assert [line.line for line in bad] == [2]
        raise RefusedError
    return int(builder.keys().task[-1])


def merged_task(row: dict[str, Any]) -> int | None:
    path = saved(row)
    if unreadable := Shards([path], strict=False).unreadable:
        assert [place.line for place, _ in unreadable] == [1]
        raise RefusedError
    keys = Shards([path]).keys()
    return keys.pop().task if keys else None


def filtered_task(row: dict[str, Any]) -> Any:
    try:
        return fixed_fields(Record(row))["task"]
    except RolloutFormatError:
        raise RefusedError from None


def viewed_task(row: dict[str, Any]) -> Any:
    path = saved(row)
    parsed = parse_span(path, FileSpan(0, path.stat().st_size, path.stat().st_ino))
    assert parsed is not None
    if parsed.unreadable:
        raise RefusedError
    return parsed.lines[0].fixed[0]


def exported_task(row: dict[str, Any]) -> Any:
    reader = RolloutReader([saved(row)])
    rollout = next(iter(reader), None)
    if rollout is None:
        assert reader.drops.examples[ODD_INDEX].endswith(":1")
        raise RefusedError
    return rollout.labels()["task"]


def trained_task(row: dict[str, Any]) -> int:
    try:
        return sequence_of(row).key.task
    except UnfitError:
        raise RefusedError from None


def profiled_task(row: dict[str, Any]) -> int:
    try:
        return next(keys_of([row], "result")).task
    except ValueError:
        raise RefusedError from None


def covered_task(row: dict[str, Any]) -> int | None:
    path = saved(row)
    (path.parent / "rollouts_materialized_inputs.jsonl").write_bytes(path.read_bytes())
    keys = PlannedKeys.of([path])
    assert keys is not None
    tasks = keys.keys().task.tolist()
    if not tasks:
        raise RefusedError
    return int(tasks[0])


def compared_task(row: dict[str, Any]) -> int:
    contents = read_contents(saved(row))
    if not contents:
        raise RefusedError
    return next(iter(contents))


KEYED: list[Seen] = [stored_task, trained_task, profiled_task, covered_task]
COUNTING: list[Seen] = [counted_task, decoded_task, filtered_task, viewed_task, compared_task]
LABELLING: list[Seen] = [exported_task, merged_task]
READERS: list[Seen] = [planned_task, *KEYED, *COUNTING, *LABELLING]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("index", [3, 3.0, "3", "03"])
def test_an_index_is_the_same_however_it_is_written(reader: Seen, index: Any) -> None:
    assert reader(with_index(index)) == 3
    assert type(reader(with_index(index))) is int


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("index", [True, False, 3.5, "three", "", "3.0", "--3", "٣", [3], {}, 2**63, -(2**63), 1e300])
def test_anything_else_is_refused_by_every_reader(reader: Seen, index: Any) -> None:
    with pytest.raises(RefusedError):
        reader(with_index(index))


@pytest.mark.parametrize("index", [MISSING, None])
def test_a_row_without_an_index_has_no_key_and_statistics_count_it_as_task_0(index: Any) -> None:
    row = with_index(index)
    assert Record(row).key is None
    for reader in KEYED:
        with pytest.raises(RefusedError):
            reader(row)
    assert {reader(row) for reader in COUNTING} == {0}
    assert exported_task(row) is None
    assert planned_task(row) == 0, "a task without an index gets one"


@pytest.mark.parametrize("index", [True, -1, 2**32, 0.5, "x"])
def test_the_same_rule_holds_for_the_index_of_a_rollout(index: Any) -> None:
    row = with_index(index, "_ng_rollout_index")
    for reader in set(READERS) - {planned_task, compared_task}:  # which do not look at it
        with pytest.raises(RefusedError):
            reader(row)


def test_a_line_that_cannot_be_read_is_named() -> None:
    for text, reason in ((b'{"a": 1', "not JSON"), (b"[1]", "not an object but list"), (b"", "not JSON")):
        with pytest.raises(RolloutFormatError, match=r"x\.jsonl:7: " + reason):
            Record.parse(text, Path("x.jsonl"), 7)


# ---- any row --------------------------------------------------------------------------------------------------------
INDEX = st.one_of(
    st.integers(-2, 5),
    st.integers(),
    st.floats(),
    st.integers(-2, 5).map(float),
    st.integers(-2, 5).map(str),
    st.text(max_size=3),
    st.booleans(),
    st.none(),
    st.just(MISSING),
)
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 9), st.floats(), st.text(max_size=3), st.just([]), st.just({})
)
COUNTS = st.dictionaries(
    st.sampled_from(
        ["input_tokens", "output_tokens", "total_tokens", "cached_tokens", "input_tokens_details", "spent"]
    ),
    st.one_of(ODD, st.dictionaries(st.sampled_from(["input_tokens", "output_tokens", "cached_tokens"]), ODD)),
)
AGENT = st.one_of(ODD, st.just(MISSING), st.fixed_dictionaries({"name": ODD}), st.just({"name": "alpha"}))
REWARD = st.one_of(ODD, st.just(MISSING), st.integers(), st.sampled_from([10**400, 1e999, "1"]))
ROWS = st.builds(
    lambda task, rollout, agent, reward, usage, judges: {
        name: value
        for name, value in {
            **ROW,
            "_ng_task_index": task,
            "_ng_rollout_index": rollout,
            "agent_ref": agent,
            "reward": reward,
            "response": {"output": [ITEM], "usage": usage},
            "_ng_judge_usage": judges,
        }.items()
        if value is not MISSING
    },
    INDEX,
    INDEX,
    AGENT,
    REWARD,
    st.one_of(ODD, COUNTS),
    st.one_of(st.just(MISSING), ODD, st.fixed_dictionaries({"judge": COUNTS})),
)


def key_or_refusal(row: dict[str, Any]) -> Any:
    try:
        return Record(row).key
    except RolloutFormatError:
        return RefusedError


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_every_reader_agrees_about_any_row(row: dict[str, Any]) -> None:
    row = json.loads(json.dumps(row))
    record, key = Record(row), key_or_refusal(row)
    for reader in (*KEYED, *COUNTING):
        if key is RefusedError:
            if reader is compared_task and reads_task(row):
                continue
            with pytest.raises((RefusedError,)):
                reader(row)
        elif key is not None and (reader is not trained_task or is_finite(record.reward)):
            assert reader(row) == key.task
    path = saved(row)
    rollout = next(iter(RolloutReader([path])), None)
    assert (rollout is not None) == (key is not RefusedError and is_finite(record.reward))
    if rollout is not None:
        labels = rollout.labels()
        assert (labels["task"], labels["rollout"]) == (record.task, record.rollout)
        assert (labels["agent"], labels["reward"]) == (record.agent, record.reward)
    if key is not RefusedError:
        check_numbers(row, record, path)


def reads_task(row: dict[str, Any]) -> bool:
    try:
        _ = Record(row).task
    except RolloutFormatError:
        return False
    return True


def is_finite(reward: float | None) -> bool:
    return reward is not None and abs(reward) != float("inf")


def check_numbers(row: dict[str, Any], record: Record, path: Path) -> None:
    """The agent, the reward and the tokens, wherever they are counted."""
    general, fast = MetricsBuilder(), MetricsBuilder()
    general.add(row)
    fast.add_block(line_of({**ROW, "_ng_task_index": 10**6, "agent_ref": None}))
    assert fast.add_block(path.read_bytes()) == []
    agents = [record.agent] if record.agent else []
    assert general.agents == fast.agents == Shards([path]).agents == agents
    columns = fixed_fields(record)
    assert columns["agent"] == (record.agent and plain_text(record.agent)), "columns show text without NUL"
    assert columns["reward"] == record.reward
    reward = general.table().top.get("reward")
    assert record.reward == (float(reward.values[0]) if reward is not None and reward.known[0] else None)
    planned = PlannedRollout(RolloutKey(0, 0), "alpha", ROW)
    outcome = outcome_of_record(planned, dict(row), 0.1)
    assert isinstance(outcome, Completed)
    assert outcome.usage == record.usage
    spent = read_spending([path], {})
    usage = record.usage or Usage(0, 0)
    assert spent.input_tokens == usage.input_tokens + sum(judge.input_tokens for _, judge in usage.judges)


# ---- what a task is -------------------------------------------------------------------------------------------------
def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reordered(value[name]) for name in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@given(st.recursive(ODD, lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=4), max_leaves=8))
def test_the_order_of_keys_does_not_make_another_task(prompt: Any) -> None:
    params = {"input": [{"role": "user", "content": prompt}], "instructions": "be brief"}
    one, other = ({**ROW, "responses_create_params": each} for each in (params, reordered(params)))
    first, second = (next(iter(RolloutReader([saved(row)]))) for row in (one, other))
    assert first.task == second.task
    contents = [read_contents(saved(row))[3] for row in (one, other)]
    assert contents == [first.record.prompt_number] * 2
    assert Record({**one, "responses_create_params": {**params, "temperature": 1}}).identity == first.task
    assert Record({**one, "responses_create_params": {**params, "instructions": ""}}).identity != first.task


def test_the_outline_of_a_line_names_the_same_rollout() -> None:
    for row in (ROW, with_index("3"), with_index(3.0), {**ROW, "response": float("nan")}):
        outline = Record(outline_of(json.dumps(row).encode()))
        assert (outline.key, outline.agent) == (Record(row).key, "alpha")


@pytest.mark.parametrize("ids", [None, "12", [1.0], [True], ["1"], {}])
def test_token_ids_are_lists_of_whole_numbers(ids: Any) -> None:
    with pytest.raises(RolloutFormatError, match="token ids"):
        list(read_calls([{**ITEM, "prompt_token_ids": ids}]))
    with pytest.raises(UnfitError):
        sequence_of({**ROW, "response": {"output": [{**ITEM, "prompt_token_ids": ids}]}})


def test_a_task_file_may_have_its_indices_in_any_form(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"_ng_task_index": "3", "question": "2 + 2"}\n')
    assert profile_tasks(tasks, saved(with_index(3.0)), tmp_path / "profile.jsonl").tasks == 1
