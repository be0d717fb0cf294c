"""The files of metrics and profiles: their shape, and that they are replaced as a whole."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.io.files import OutputPathError, follow_link, replacing
from nemo_gym.io.json import to_json
from nemo_gym.metrics.aggregate import compute_aggregate_metrics, write_metrics_file
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.profile import ProfileError, profile_files, profile_tasks

RESPONSES: list[dict[str, Any]] = [
    {"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": float(repeat), "100%": task, "ok": True}
    for task in range(3)
    for repeat in range(2)
]
ODD: list[dict[str, Any]] = [
    {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": None, "big": 2**80},
    {"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": math.inf, "x": math.nan},
    {"_ng_task_index": 1, "_ng_rollout_index": 0, "reward": 0.5, "x": 1, "response": {"usage": {"x": 2, "t": 3}}},
]


STRANGE: list[dict[str, Any]] = [{"reward": 1.0, '": "\0': 1, "\0": 2, "%b": 3, "%": 4}] * 2


@pytest.mark.parametrize("responses", [RESPONSES, ODD, STRANGE, []])
def test_a_table_is_written_as_its_metrics_would_be(responses: list[dict[str, Any]], tmp_path: Path) -> None:
    builder = MetricsBuilder()
    for response in responses:
        builder.add(response)
    metrics = compute_aggregate_metrics(responses)
    write_metrics_file(tmp_path / "a.json", {"x": builder.table()})
    write_metrics_file(tmp_path / "b.json", {"x": metrics})
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    (entry,) = json.loads((tmp_path / "a.json").read_text())
    assert list(entry) == ["agent_ref", "agent_metrics", "key_metrics", "group_level_metrics"]
    assert entry == json.loads(to_json({"agent_ref": {"name": "x"}, **metrics.model_dump(include=set(entry))}))


def test_the_file_is_indented_by_two_and_sorted_by_agent(tmp_path: Path) -> None:
    metrics = compute_aggregate_metrics(RESPONSES)
    path = tmp_path / "new" / "m.json"
    write_metrics_file(path, {"b": metrics, "a": metrics})
    text = path.read_text()
    assert [entry["agent_ref"]["name"] for entry in json.loads(text)] == ["a", "b"]
    assert text == json.dumps(json.loads(text), indent=2) + "\n"


def test_no_agent_is_an_empty_list(tmp_path: Path) -> None:
    write_metrics_file(tmp_path / "m.json", [])
    assert json.loads((tmp_path / "m.json").read_text()) == []


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_what_every_reader_accepts() -> None:
    odd = {"nan": math.nan, "big": 2**70, "surrogate": "\ud800", 3: {1}, "nested": [math.inf, (1,)]}
    assert json.loads(to_json(odd)) == {
        "nan": None, "big": 2**70, "surrogate": "\ud800", "3": [1], "nested": [None, [1]],
    }  # fmt: skip
    assert to_json({"a": 1}, indent=True) == b'{\n  "a": 1\n}'


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def plan(tasks: int, repeats: int) -> list[dict[str, Any]]:
    return [
        {"question": f"q{task}", "_ng_task_index": task, "_ng_rollout_index": repeat, "agent_ref": {"name": "a"}}
        for task in range(tasks)
        for repeat in range(repeats)
    ]


def results(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "reward": float(row["_ng_rollout_index"])} for row in reversed(rows)]


def test_a_profile_from_files_has_samples_and_completion(tmp_path: Path) -> None:
    rows = plan(3, 2)
    inputs, rollouts = write_lines(tmp_path / "in.jsonl", rows), write_lines(tmp_path / "o.jsonl", results(rows)[:-2])
    with pytest.raises(ProfileError, match=r"2 materialized inputs have no result: \[\(0, 0\), \(0, 1\)\]") as caught:
        profile_files(inputs, rollouts)
    assert "allow_partial_rollouts" in (caught.value.hint or "")
    assert not list(tmp_path.glob("o_*"))
    report = profile_files(inputs, rollouts, allow_partial=True)
    groups = [json.loads(line) for line in report.files.groups.read_text().splitlines()]
    assert [group["sample"] for group in groups] == [
        {"question": f"q{task}", "agent_ref": {"name": "a"}} for task in (1, 2)
    ]
    assert json.loads(report.files.agents.read_text())[0]["mean/reward"] == 0.5
    assert report.summary["reward_profile_completion_pct"] == pytest.approx(100 * 4 / 6)
    assert report.summary["missing_input_rows"] == 1


def test_profile_errors_name_the_place(tmp_path: Path) -> None:
    rows = plan(2, 1)
    inputs = write_lines(tmp_path / "in.jsonl", rows)
    with pytest.raises(ConfigPathNotFoundError, match="--rollouts"):
        profile_files(inputs, tmp_path / "none.jsonl")
    broken = tmp_path / "o.jsonl"
    broken.write_text('{"reward": 1}\n{torn\n')
    with pytest.raises(ConfigError, match=r"o.jsonl:2: not JSON"):
        profile_files(inputs, broken)
    twice = write_lines(tmp_path / "twice.jsonl", [*results(rows), *results(rows)])
    with pytest.raises(ProfileError, match=r"twice.jsonl: two results .* \(0, 0\)"):
        profile_files(inputs, twice)
    unnumbered = write_lines(tmp_path / "un.jsonl", [{"question": "x"}])
    with pytest.raises(ProfileError, match=r"un.jsonl:1"):
        profile_files(unnumbered, broken)


def test_the_older_profile_has_one_row_per_task(tmp_path: Path) -> None:
    tasks = write_lines(tmp_path / "t.jsonl", [{"q": 0}, {"q": 1}, {"q": 0}, {"q": 2}, {"q": 9, "_ng_task_index": 9}])
    rewards = {0: [1.0, 0.5], 1: [0.0], 9: [1.0]}
    rollouts = write_lines(
        tmp_path / "r.jsonl",
        [{"_ng_task_index": task, "reward": reward} for task, values in rewards.items() for reward in values],
    )
    output = tmp_path / "out" / "profile.jsonl"
    assert profile_tasks(tasks, rollouts, output, pass_threshold=0.9).tasks == 3
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert rows[0] == {
        "q": 0, "avg_reward": 0.75, "std_reward": pytest.approx(0.5**0.5 / 2), "min_reward": 0.5, "max_reward": 1.0,
        "total_samples": 2, "pass_rate": 0.5, "pass_rate_total": 2, "pass_rate_passed": 1, "pass_threshold": 0.9,
    }  # fmt: skip
    assert [row["q"] for row in rows] == [0, 1, 9]
    assert profile_tasks(tasks, rollouts, output).tasks == 3
    assert "pass_rate" not in json.loads(output.read_text().splitlines()[0])


def test_a_link_to_an_open_pipe_is_not_taken_for_the_name_of_a_file(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        link = tmp_path / "out.jsonl"
        link.symlink_to(f"/proc/self/fd/{writer}")  # as /dev/stdout is when the output goes to another program
        assert follow_link(link) == link
        with pytest.raises(OutputPathError, match="a device or a pipe"), replacing(link):
            pass
        assert link.is_symlink()
    finally:
        os.close(reader)
        os.close(writer)
