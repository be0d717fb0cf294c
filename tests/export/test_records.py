"""Reading rollouts for an export: what counts, where a line is, and how many files are open."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.exporting.records import NO_REWARD, REPEATED, UNREADABLE, RolloutReader, read_at


def line(task: int = 0, **more: Any) -> str:
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x" * 100}]}
    row = {"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 1.0, "response": {"output": [message]}}
    return json.dumps(row | more) + "\n"


def test_a_line_is_found_again_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line(0) + "\n  \n" + line(1) + line(1) + "{torn")
    read: list[int] = []
    reader = RolloutReader([path], advance=read.append)
    found = list(reader)
    assert [(one.line, one.start) for one in found] == [(1, 0), (4, len(line(0)) + 4)]
    assert (reader.lines, sum(read)) == (4, path.stat().st_size)
    assert reader.drops.counts == {REPEATED: 1, UNREADABLE: 1}
    again = list(read_at((one.path, one.line, one.start) for one in reversed(found)))
    assert [one.record.task for one in again] == [1, 0]


@pytest.mark.parametrize("reward", [None, float("inf"), float("-inf"), "high"])
def test_without_a_finite_number_as_reward_a_rollout_is_left_out(reward: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line(reward=reward) + line(1, reward=0))
    reader = RolloutReader([path])
    assert [one.record.task for one in reader] == [1]
    assert reader.drops.counts == {NO_REWARD: 1}


@pytest.mark.parametrize("more", [{"response": {"output": None}}, {"response": {"output": ["text"]}}, {"response": 1}])
def test_what_is_not_a_rollout_is_left_out(more: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line(**more))
    assert list(RolloutReader([path])) == []


def test_tokens_are_those_that_were_counted_or_a_quarter_of_the_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    output = json.loads(line())["response"]["output"]
    path.write_text(line(0, response={"output": output, "usage": {"output_tokens": 7}}) + line(1))
    counted, estimated = RolloutReader([path])
    assert counted.written_tokens == 7
    assert estimated.written_tokens == len(json.dumps(output, separators=(",", ":"))) // 4


def test_any_number_of_files_is_read_with_few_of_them_open(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jsonl" for number in range(100)]
    for number, path in enumerate(paths):
        path.write_text(line(number))
    before = len(list(Path("/proc/self/fd").iterdir()))
    most, tasks = 0, []
    for found in read_at((path, 1, 0) for path in [*paths, *paths[:3]]):
        tasks.append(found.record.task)
        most = max(most, len(list(Path("/proc/self/fd").iterdir())) - before)
    assert tasks == [*range(100), 0, 1, 2]
    assert most <= 65  # 64, and the folder that is being listed
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_changed_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line(0) + line(1))
    with pytest.raises(ConfigError, match="changed while it was exported"):
        list(read_at([(path, 2, 5)]))
