"""What is at an output: the manifest, what may be written, what is moved aside."""

import json
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import OutputPathError, RunFiles, role_of
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.attempt import AgentAttempt
from nemo_gym.rollouts.concurrency import FixedLimit
from nemo_gym.rollouts.plan import PlanSource, PlanSpec
from nemo_gym.rollouts.run import CollectionRun, RunControl, run_collection
from nemo_gym.rollouts.store.output import InputFacts, Manifest, OutputTakenError, PlanFacts, Request, check_output
from nemo_gym.rollouts.store.rollout_store import ResumeMode

Agents = Callable[..., AbstractAsyncContextManager[Any]]
Tasks = Callable[..., Path]


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def collect_to(output: Path, tasks: Path, **options: Any) -> RolloutCollectionConfig:
    given = {"agent_name": "alpha", "input_jsonl_fpath": str(tasks), "output_jsonl_fpath": str(output)}
    return RolloutCollectionConfig.model_validate({**given, **options})


def scored(*_: Any) -> Any:
    return {"reward": 1.0}


BAD_OUTPUTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a folder": (lambda folder: folder / "results", "is a folder"),
    "the working directory": (lambda _: Path(), "is a folder"),
    "a pipe": (lambda folder: folder / "pipe", "not a file"),
    "a device": (lambda _: Path("/dev/null"), "not a file"),
    "a link to a folder": (lambda folder: folder / "link", "is a folder"),
    "below a file": (lambda folder: folder / "tasks.jsonl" / "out.jsonl", "is a file"),
    "the input": (lambda folder: folder / "tasks.jsonl", "is also the output"),
    "a link to the input": (lambda folder: folder / "to_tasks.jsonl", "is also the output"),
    "a hard link to the input": (lambda folder: folder / "hard.jsonl", "is also the output"),
    "a folder where the failures go": (lambda folder: folder / "blocked.jsonl", "blocked_failures.jsonl"),
    "the name of another run's file": (lambda folder: folder / "x_failures.jsonl", "failures file of another run"),
    "another run but for the suffix": (lambda folder: folder / "same.txt", "same.jsonl"),
}


@pytest.mark.parametrize("what", BAD_OUTPUTS)
async def test_an_output_that_cannot_be_used_is_refused_and_nothing_is_touched(
    what: str, agents_with: Agents, tasks_file: Tasks, tmp_path: Path
) -> None:
    tasks = tasks_file(2)
    (tmp_path / "results" / "precious").mkdir(parents=True)
    (tmp_path / "blocked_failures.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "results")
    (tmp_path / "to_tasks.jsonl").symlink_to(tasks)
    (tmp_path / "hard.jsonl").hardlink_to(tasks)
    (tmp_path / "same.jsonl").write_text('{"_ng_task_index":0,"reward":1.0,"_ng_rollout_index":0}\n')
    make, told = BAD_OUTPUTS[what]
    before = snapshot(tmp_path)
    async with agents_with(scored) as agents:
        with pytest.raises(OutputPathError) as caught:
            await RolloutCollectionHelper().collect(collect_to(make(tmp_path), tasks), client=agents, lenient=True)
    assert told in str(caught.value)
    assert caught.value.hint
    assert snapshot(tmp_path) == before
    assert not agents.received


async def test_a_plan_is_not_a_task_file_of_its_own_run(agents_with: Agents, tasks_file: Tasks, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    async with agents_with(scored) as agents:
        await RolloutCollectionHelper().collect(collect_to(output, tasks_file(2)), client=agents)
        with pytest.raises(OutputPathError, match="beside its output"):
            await RolloutCollectionHelper().collect(collect_to(output, RunFiles.of(output).plan), client=agents)


async def test_links_are_followed(agents_with: Agents, tasks_file: Tasks, tmp_path: Path) -> None:
    store, link = tmp_path / "disk" / "real.jsonl", tmp_path / "out.jsonl"
    store.parent.mkdir()
    link.symlink_to(store)
    async with agents_with(scored) as agents:
        await RolloutCollectionHelper().collect(collect_to(link, tasks_file(3)), client=agents)
        resumed = await RolloutCollectionHelper().collect(
            collect_to(store, tasks_file(3), resume_from_cache=True), client=agents
        )
    assert link.is_symlink()
    assert len(store.read_text().splitlines()) == 3
    assert resumed.done_before == 3


async def test_a_forgotten_resume_loses_nothing_however_often(
    agents_with: Agents, tasks_file: Tasks, tmp_path: Path
) -> None:
    output, helper = tmp_path / "out.jsonl", RolloutCollectionHelper()
    async with agents_with(scored) as agents:
        await helper.collect(collect_to(output, tasks_file(4)), client=agents)
        output.write_bytes(b"".join(output.read_bytes().splitlines(keepends=True)[:3]))
        before = snapshot(tmp_path)
        for _ in range(2):
            with pytest.raises(OutputTakenError, match="already holds 3 rollouts of the same plan, 1 left") as caught:
                await helper.collect(collect_to(output, tasks_file(4)), client=agents)
            for way in ("+resume_from_cache=true", "+overwrite=true", "out.jsonl.backup-1"):
                assert way in (caught.value.hint or "")
        assert snapshot(tmp_path) == before
        assert len(agents.received) == 4


async def test_a_finished_run_and_a_run_of_another_plan_are_moved_aside_as_a_whole(
    agents_with: Agents, tasks_file: Tasks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output, helper, tasks = tmp_path / "out.jsonl", RolloutCollectionHelper(), tasks_file(2)
    async with agents_with(scored) as agents:
        for repeats in (1, 1, 3):  # the first is finished; the second is cut short, and the third has another plan
            await helper.collect(collect_to(output, tasks, num_repeats=repeats), client=agents)
            if repeats == 1:
                output.write_bytes(
                    output.read_bytes().splitlines(keepends=True)[0] if caplog.text else output.read_bytes()
                )
    moved = [tmp_path / f"out.jsonl.backup-{n}" / "out.jsonl" for n in (1, 2)]
    assert [len(path.read_text().splitlines()) for path in (*moved, output)] == [2, 1, 6]
    assert all(RunFiles.of(path).manifest.exists() and RunFiles.of(path).plan.exists() for path in moved)
    told = [record.getMessage() for record in caplog.records if "backup" in record.getMessage()]
    assert told == [f"The earlier run at {output} is now in {path.parent}" for path in moved]


async def test_a_run_without_a_manifest_is_moved_aside_only_if_it_is_finished(
    agents_with: Agents, tasks_file: Tasks, tmp_path: Path
) -> None:
    output, helper = tmp_path / "out.jsonl", RolloutCollectionHelper()
    async with agents_with(scored) as agents:
        await helper.collect(collect_to(output, tasks_file(2)), client=agents)
        RunFiles.of(output).manifest.unlink()
        await helper.collect(collect_to(output, tasks_file(2)), client=agents)
        assert (tmp_path / "out.jsonl.backup-1").is_dir()
        RunFiles.of(output).manifest.unlink()
        output.write_bytes(output.read_bytes().splitlines(keepends=True)[0])
        with pytest.raises(OutputTakenError, match="1 left"):
            await helper.collect(collect_to(output, tasks_file(2)), client=agents)


async def test_overwrite_keeps_every_earlier_run_as_a_whole(
    agents_with: Agents, tasks_file: Tasks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output, helper = tmp_path / "out.jsonl", RolloutCollectionHelper()
    async with agents_with(scored) as agents:
        for count in (3, 2, 1):
            await helper.collect(collect_to(output, tasks_file(count), overwrite=True), client=agents)
        kept = [tmp_path / f"out.jsonl.backup-{n}" / "out.jsonl" for n in (1, 2)]
        assert [len(path.read_text().splitlines()) for path in (*kept, output)] == [3, 2, 1]
        assert all(str(path.parent) in caplog.text for path in kept)
        assert RunFiles.of(kept[0]).metrics.exists()
        resumed = await helper.collect(collect_to(kept[0], tasks_file(3), resume_from_cache=True), client=agents)
    assert (resumed.done_before, resumed.exit_code) == (3, 0)


async def test_files_without_a_plan_are_not_overwritten_by_a_resumed_run_either(
    agents_with: Agents, tasks_file: Tasks, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("my notes\n")
    async with agents_with(scored) as agents:
        with pytest.raises(OutputTakenError, match="1 line without a rollout"):
            await RolloutCollectionHelper().collect(
                collect_to(output, tasks_file(1), resume_from_cache=True), client=agents
            )
    assert output.read_text() == "my notes\n"


async def test_extending_with_an_agent_that_does_not_exist_leaves_the_old_plan(
    agents_with: Agents, tasks_file: Tasks, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"

    def wanted(*more: str, **options: Any) -> CollectionRun:
        tasks = tasks_file(3)
        extra = [{"agent_ref": {"name": agent}, "responses_create_params": {"input": "new"}} for agent in more]
        tasks.write_text(tasks.read_text() + "".join(json.dumps(task) + "\n" for task in extra))
        source = PlanSource(str(tasks), None, PlanSpec(agent="alpha"))
        return CollectionRun(output=output, rows=source.rows, request=source.request, agents={"alpha"}, **options)

    async with agents_with(scored) as agents:
        attempt, control = AgentAttempt(agents), RunControl(limit=FixedLimit(4))
        await run_collection(wanted(), attempt, control)
        before = {name: text for name, text in snapshot(tmp_path).items() if name != "tasks.jsonl"}
        extend = {"resume": True, "resume_mode": ResumeMode.EXTEND}
        with pytest.raises(ConfigError, match="alhpa"):
            await run_collection(wanted("alhpa", **extend), attempt, control)
        assert {name: text for name, text in snapshot(tmp_path).items() if name != "tasks.jsonl"} == before
        assert (await run_collection(wanted(resume=True), attempt, control)).exit_code == 0, "the old settings still do"
        with_more = await run_collection(wanted("alpha", **extend), attempt, control)
    assert (with_more.done_before, with_more.completed) == (3, 4)


def test_every_file_of_a_run_is_known_by_its_name(tmp_path: Path) -> None:
    files = RunFiles.of(tmp_path / "out.v1.jsonl")
    assert role_of(files.rollouts) is None
    assert {role_of(path) for path in files.beside if path != files.lock} == {
        *("plan", "failures", "steps", "timing", "metrics", "details", "manifest", "profile"),
        *("agent_metrics", "difficulty", "solve_rates", "status", "index", "audit", "marks"),
    }
    assert check_output(files) is None
    assert json.dumps(sorted(path.name for path in files.beside)).count("out.v1") == len(files.beside)


def manifest_of(request: Request) -> Manifest:
    return request.manifest(PlanFacts(rows=1, bytes=2), Path("out.jsonl"))


def test_a_manifest_survives_the_round_trip(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("{}\n")
    manifest = manifest_of(Request({"limit": 3}, tasks, 3))
    manifest.write(tmp_path / "m.json")
    assert Manifest.read(tmp_path / "m.json") == manifest
    content = json.loads((tmp_path / "m.json").read_text())
    assert set(content) == {"settings", "input", "plan", "output", "models", "created_at", "versions", "format"}


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
