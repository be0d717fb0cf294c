"""The tokens of model calls in a row: both forms are read alike, and each becomes the other, byte for byte."""

import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.exporting.pipeline import export_rollouts
from nemo_gym.exporting.recipe import Recipe
from nemo_gym.exporting.tokens import token_spans
from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.rollouts.store.saved_lines import encode_keyed
from nemo_gym.schemas.call_tokens import (
    RolloutFormatError,
    common_prefix,
    read_calls,
    with_added_prompts,
    with_full_prompts,
)
from nemo_gym.schemas.record import Record
from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.training.sequences import Group, sequences_of


def item(prompt: Any, generation: Any, **fields: Any) -> dict[str, Any]:
    tokens = {"prompt_token_ids": prompt, "generation_token_ids": generation}
    return {
        "type": "message",
        "role": "assistant",
        "content": [],
        **tokens,
        "generation_log_probs": [-0.5] * 2,
    } | fields


def row(*output: Any, **fields: Any) -> dict[str, Any]:
    record = {"response": {"output": list(output), "model": "m"}, "reward": 1.0, **fields}
    return orjson.loads(encode_keyed(RolloutKey(0, 0), record))  # type: ignore[no-any-return]


RESULT = {"type": "function_call_output", "call_id": "c", "output": "7"}
GROWING = row(item([1, 2], [3, 4]), RESULT, item([1, 2, 3, 4, 5], [6, 7]), item([1, 2, 3, 4, 5, 6, 7, 8], [9, 2]))


def random_row(seed: int) -> dict[str, Any]:
    """Calls that continue, break, branch, are empty, invalid or in another trace."""
    chance = random.Random(seed)
    outputs: list[list[Any]] = [[], [], []]
    seen = [1, 2]
    for _ in range(12):
        keep = chance.choice([len(seen), len(seen), len(seen) // 2, 0])
        prompt = seen[:keep] + [chance.randrange(100) for _ in range(chance.randrange(4))]
        made = [chance.randrange(100) for _ in range(chance.randrange(3))]
        odd = chance.random() < 0.1
        outputs[chance.randrange(3)].append(item("no ids" if odd else prompt, made))
        outputs[0].append(RESULT)
        seen = prompt + made
    return row(*outputs[0], traces=[{"output": outputs[1]}, "odd", {"output": outputs[2]}])


@pytest.mark.parametrize("seed", range(30))
def test_each_form_becomes_the_other_byte_for_byte(seed: int) -> None:
    full = random_row(seed)
    added = with_added_prompts(full)
    assert added["_ng_token_form"] == 1
    assert list(added)[-1] == "_ng_rollout_index"
    assert orjson.dumps(with_full_prompts(added)) == orjson.dumps(full) == orjson.dumps(with_full_prompts(full))
    assert orjson.dumps(with_added_prompts(with_full_prompts(added))) == orjson.dumps(added)
    assert b'"prompt_token_ids":[' not in orjson.dumps(added)


@pytest.mark.parametrize("seed", range(30))
def test_both_forms_are_read_alike(seed: int) -> None:
    full, added = (Record(form(random_row(seed))) for form in (with_full_prompts, with_added_prompts))
    assert check_continuity(full.items) == check_continuity(added.items)
    valid = [
        [each for each in Record(record.fields).items if each.get("prompt_token_ids") != "no ids"] for record in (full,)
    ]
    prompts = [call.prompt for call in read_calls(*valid)]
    assert prompts == [each["prompt_token_ids"] for each in valid[0] if "prompt_token_ids" in each]


def test_a_prompt_is_what_it_adds_to_the_call_before() -> None:
    added = with_added_prompts(GROWING)["response"]["output"]
    assert [each.get("prompt_token_ids_added") for each in added] == [[1, 2], None, [5], [8]]
    assert not any("prompt_tokens_kept" in each for each in added)
    broken = with_added_prompts(row(item([1, 2], [3, 4]), item([1, 2, 9], [6, 7])))["response"]["output"]
    assert (broken[1]["prompt_tokens_kept"], broken[1]["prompt_token_ids_added"]) == (2, [9])


def test_size_grows_with_the_tokens_and_not_with_their_square() -> None:
    def of(turns: int) -> int:
        items, seen = [], [1]
        for _ in range(turns):
            items.append(item(list(seen), [7] * 10))
            seen += [7] * 10 + [8] * 5
        return len(orjson.dumps(with_added_prompts(row(*items))))

    assert of(200) < 4.2 * of(50)


@pytest.mark.parametrize("kept", [-1, 5, "1", True, 1.0])
def test_what_is_kept_must_be_there(kept: Any) -> None:
    second = {"generation_token_ids": [6], "prompt_token_ids_added": [5], "prompt_tokens_kept": kept}
    with pytest.raises(RolloutFormatError, match="token ids"):
        list(read_calls([item([1, 2], [3, 4]), second]))


def test_a_form_of_the_future_is_refused() -> None:
    with pytest.raises(RolloutFormatError, match="newer than this program"):
        _ = Record({**with_added_prompts(GROWING), "_ng_token_form": 2}).traces


def test_every_sampled_token_is_in_exactly_one_sequence() -> None:
    main, sub = item([1, 2], [3, 4]), item([20, 21], [22, 23])
    later, summary = item([1, 2, 3, 4, 5], [6, 7]), item([1, 2, 30], [31, 32])
    record = row(main, later, traces=[{"output": [sub, item([20, 21, 22, 23, 24], [25, 26])]}, {"output": [summary]}])
    for form in (record, with_added_prompts(record)):
        spans = token_spans(form["response"]["output"], form["traces"])
        assert [span.ids for span in spans] == [[1, 2, 3, 4, 5, 6, 7], [20, 21, 22, 23, 24, 25, 26], [1, 2, 30, 31, 32]]
        sampled = [token for span in spans for token, made in zip(span.ids, span.mask, strict=True) if made]
        assert sorted(sampled) == [3, 4, 6, 7, 22, 23, 25, 26, 31, 32]


def test_calls_that_alternate_in_one_output_are_still_two_sequences() -> None:
    one, other = item([1], [2, 3]), item([50], [51, 52])
    spans = token_spans([one, other, item([1, 2, 3, 4], [5, 6]), item([50, 51, 52, 53], [54, 55])])
    assert [span.ids for span in spans] == [[1, 2, 3, 4, 5, 6], [50, 51, 52, 53, 54, 55]]


def test_a_repeated_call_that_was_not_used_is_not_trained() -> None:
    [span] = token_spans([item([1], [2, 3])], [{"output": [item([1], [4, 5])], "trained": False}])
    assert span.ids == [1, 2, 3]


def test_a_rollout_of_several_traces_counts_once_in_its_group() -> None:
    record = Record({**row(item([1], [2, 3]), traces=[{"output": [item([9], [8, 7])]}]), "reward": 1.0})
    other = Record({**row(item([1], [2, 3])), "_ng_rollout_index": 1, "reward": 0.0})
    group = Group(0, [*sequences_of(record), *sequences_of(other)])
    assert group.advantages() == [1.0, 1.0, -1.0]
    assert len(group.pairs(4)) == 1


def test_an_export_converts_files_both_ways(tmp_path: Path) -> None:
    rows = [GROWING, row(item([1, 2], [3, 4]), _ng_marker="x"), row({"type": "message"})]
    lines = [encode_keyed(RolloutKey(0, number), each) for number, each in enumerate(rows)]
    full = tmp_path / "full.jsonl"
    full.write_bytes(b"".join(line + b"\n" for line in lines))
    added, again = tmp_path / "added.jsonl", tmp_path / "again.jsonl"
    export_rollouts(Recipe(input=str(full), output=str(added), format="rollouts"))
    export_rollouts(Recipe(input=str(added), output=str(again), format="rollouts", prompts="full"))
    assert again.read_bytes() == full.read_bytes()
    assert added.read_bytes() != full.read_bytes()
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_bytes(full.read_bytes().splitlines(keepends=True)[0] + added.read_bytes().splitlines(keepends=True)[1])
    export_rollouts(Recipe(input=str(mixed), output=str(tmp_path / "rl.jsonl"), format="rl"))
    made = [orjson.loads(line)["input_ids"] for line in (tmp_path / "rl.jsonl").read_bytes().splitlines()]
    assert sorted(made) == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8, 9, 2]]


def test_a_row_of_the_format_rl_is_one_trace(tmp_path: Path) -> None:
    saved = tmp_path / "rollouts.jsonl"
    task = {"responses_create_params": {"input": [{"role": "user", "content": "Hi."}]}}
    record = row(item([1, 2], [3, 4]), traces=[{"output": [item([20, 21], [22, 23])]}], **task)
    saved.write_bytes(encode_keyed(RolloutKey(0, 0), with_added_prompts(record)) + b"\n")
    for names in ("plain", "verl", "skyrl", "openrlhf"):
        output = tmp_path / f"{names}.jsonl"
        export_rollouts(Recipe(input=str(saved), output=str(output), format="rl", names=names))
        assert len(output.read_bytes().splitlines()) == 2


def test_a_common_prefix_may_be_empty() -> None:
    assert common_prefix([], [1]) == 0
