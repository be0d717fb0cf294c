import json
import os
from pathlib import Path

from nemo_gym.rollouts.store.manifest import InputFacts, Manifest, PlanFacts, Request


def manifest_of(request: Request) -> Manifest:
    return request.manifest(PlanFacts(rows=1, bytes=2), Path("out.jsonl"))


def test_a_manifest_survives_the_round_trip(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("{}\n")
    manifest = manifest_of(Request({"limit": 3}, tasks, 3))
    manifest.write(tmp_path / "m.json")
    assert Manifest.read(tmp_path / "m.json") == manifest
    content = json.loads((tmp_path / "m.json").read_text())
    assert set(content) == {"settings", "input", "plan", "output", "created_at", "versions", "format"}


def test_a_manifest_with_a_digest_of_the_plan_can_still_be_read(tmp_path: Path) -> None:
    manifest = manifest_of(Request({}))
    manifest.write(tmp_path / "m.json")
    content = json.loads((tmp_path / "m.json").read_text())
    content["plan"]["digest"] = "0123"
    (tmp_path / "m.json").write_text(json.dumps(content))
    assert Manifest.read(tmp_path / "m.json") == manifest


def test_a_manifest_that_cannot_be_read_is_as_good_as_none(tmp_path: Path) -> None:
    assert Manifest.read(tmp_path / "none.json") is None
    (tmp_path / "m.json").write_text('{"settings": {}')
    assert Manifest.read(tmp_path / "m.json") is None
    (tmp_path / "m.json").write_text('{"future": 1, "input": null, "plan": {"rows": 1, "bytes": 1, "digest": ""}}')
    assert Manifest.read(tmp_path / "m.json") is None


def test_differences_are_told_in_words() -> None:
    earlier = manifest_of(Request({"num_repeats": 1, "agent_name": None, "same": [1]}))
    now = Request({"num_repeats": {"a": 2}, "agent_name": "a", "same": [1]})
    assert list(now.differences(earlier)) == ['num_repeats: 1 → {"a": 2}', 'agent_name: null → "a"']


def test_a_task_file_that_was_only_touched_is_the_same(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("{}\n{}\n")
    request = Request({}, tasks)
    earlier = manifest_of(request)
    os.utime(tasks, (1, 1))
    assert list(request.differences(earlier)) == []
    tasks.write_text('{}\n{"changed": 1}\n')
    assert "content" in "".join(request.differences(earlier))


def test_lines_beyond_the_limit_may_change(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("{}\n{}\n")
    facts = InputFacts.of(tasks, 1)
    tasks.write_text('{}\n{"changed": 1}\n')
    assert facts.still_holds(tasks, 1)
    assert not facts.still_holds(tasks, None)
