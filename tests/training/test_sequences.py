"""From rollout records to sequences and groups: plain values, no model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.exporting.pipeline import export_rollouts
from nemo_gym.exporting.recipe import Recipe
from nemo_gym.exporting.sft import UnfitError
from nemo_gym.io.json import encode
from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.training.sequences import (
    Group,
    common_start,
    group_sequences,
    read_groups,
    sequence_of,
)


def call(prompt: list[int], generation: list[int], **more: Any) -> dict[str, Any]:
    scores = [-0.1 * token for token in generation]
    tokens = {"prompt_token_ids": prompt, "generation_token_ids": generation, "generation_log_probs": scores}
    return {"type": "message", "role": "assistant", "content": [], **tokens, **more}


def record(reward: float, *output: dict[str, Any], task: int = 0, rollout: int = 0, **response: Any) -> dict[str, Any]:
    keys = {"_ng_task_index": task, "_ng_rollout_index": rollout}
    return {**keys, "reward": reward, "response": {"output": list(output), **response}}


RESULT = {"type": "function_call_output", "call_id": "c", "output": "7"}
TWO_TURNS = record(1.0, call([1, 2], [3, 4], policy_version=3), RESULT, call([1, 2, 3, 4, 9, 9], [5], policy_version=4))


def group(*rewards: float) -> Group:
    records = [record(reward, call([1], [2]), rollout=number) for number, reward in enumerate(rewards)]
    return group_sequences(map(sequence_of, records))[0]


def test_turns_become_one_sequence_with_a_mask_on_what_was_sampled() -> None:
    found = sequence_of(TWO_TURNS)
    assert found.ids == [1, 2, 3, 4, 9, 9, 5]
    assert found.mask == [0, 0, 1, 1, 0, 0, 1]
    assert found.log_probs == pytest.approx([0, 0, -0.3, -0.4, 0, 0, -0.5])
    assert found.versions == [3, 4]
    assert found.start == 2


def test_a_message_log_alternates() -> None:
    log = sequence_of(TWO_TURNS).message_log()
    assert [(part["role"], part["token_ids"]) for part in log] == [
        ("user", [1, 2]),
        ("assistant", [3, 4]),
        ("user", [9, 9]),
        ("assistant", [5]),
    ]
    assert log[1]["log_probs"] == pytest.approx([-0.3, -0.4])


def test_two_turns_in_a_row_stay_two_segments_in_an_export_too(tmp_path: Path) -> None:
    row = record(1.0, call([1, 2], [3, 4]), call([1, 2, 3, 4], [5]), call([1, 2, 3, 4, 5, 6], [7]))
    found = sequence_of(row)
    assert [(part["role"], part["token_ids"]) for part in found.message_log()] == [
        ("user", [1, 2]),
        ("assistant", [3, 4]),
        ("assistant", [5]),
        ("user", [6]),
        ("assistant", [7]),
    ]
    assert len(found.turn_starts) == check_continuity(row["response"]["output"]).calls
    (tmp_path / "rollouts.jsonl").write_bytes(encode(row) + b"\n")
    recipe = {"input": str(tmp_path / "rollouts.jsonl"), "output": str(tmp_path / "rl.jsonl"), "metadata": True}
    export_rollouts(Recipe(format="rl", **recipe))
    assert read_groups(tmp_path / "rl.jsonl")[0].sequences[0].message_log() == found.message_log()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (record(1.0), "no token ids"),
        (record(1.0, call([1, 2], [3, 4]), call([1, 2, 3, 8], [5])), "not one sequence"),
        (record(1.0, call([1], [2], generation_log_probs=[])), "no log-probabilities"),
        (record(1.0, call([1], [])), "no token ids"),
        ({**record(1.0, call([1], [2])), "reward": None}, "no reward"),
    ],
    ids=["no-tokens", "break", "no-scores", "empty", "no-reward"],
)
def test_what_can_not_be_trained_on_says_why(broken: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnfitError, match=reason):
        sequence_of(broken)


def test_advantages_are_relative_to_the_group() -> None:
    assert group(1.0, 0.0, 0.0, 1.0).advantages() == [1.0, -1.0, -1.0, 1.0]
    assert group(1.0, 1.0).advantages() == [0.0, 0.0]
    assert sum(group(0.3, 0.9, 0.1).advantages()) == pytest.approx(0)


def test_pairs_have_a_better_and_a_worse_one_and_nobody_twice() -> None:
    pairs = group(0.0, 1.0, 0.5, 1.0, 0.0).pairs(3)
    assert [(good.reward, bad.reward) for good, bad in pairs] == [(1.0, 0.0), (1.0, 0.0)]
    members = [one.key for pair in pairs for one in pair]
    assert len(set(members)) == len(members)
    assert group(1.0, 1.0).pairs(2) == []
    assert group(0.0, 1.0, 0.0, 1.0).pairs(2, seed=1) == group(0.0, 1.0, 0.0, 1.0).pairs(2, seed=1)


def test_a_common_start_never_contains_a_sampled_token() -> None:
    records = [
        record(1.0, call([1, 2, 3], [4, 5])),
        record(1.0, call([1, 2, 3], [4, 6])),
        record(0.0, call([1, 7], [4])),
    ]
    sequences = list(map(sequence_of, records))
    assert common_start(sequences[:2]) == 3
    assert common_start(sequences) == 1


def test_an_export_holds_the_groups_that_a_running_gym_would_give(tmp_path: Path) -> None:
    rows = [
        record(0.5, *TWO_TURNS["response"]["output"], task=1, rollout=1),
        record(0.0, call([1], [2]), task=1),
        record(1.0, call([1], [2]), task=0),
        record(1.0, task=0, rollout=1),
    ]
    source = tmp_path / "rollouts.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = tmp_path / "samples.jsonl"
    report = export_rollouts(Recipe(input=str(source), output=str(samples), format="rl", metadata=True))
    assert report.drops.counts == {"token ids": 1}
    found = read_groups(samples)
    assert [group.task for group in found] == [0, 1]
    live = group_sequences(map(sequence_of, rows[:3]))
    for ours, theirs in zip(found, live, strict=True):
        assert [replace(one, versions=[]) for one in theirs.sequences] == ours.sequences
        assert ours.advantages() == theirs.advantages()
    exported = {
        (row["task"], row["rollout"]): row["advantage"] for row in map(json.loads, samples.read_text().splitlines())
    }
    assert [exported[one.key] for one in found[1].sequences] == found[1].advantages()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(TWO_TURNS) + "\n")
    with pytest.raises(ConfigError, match="does not hold token sequences"):
        read_groups(path)
