"""Collecting from Python: environments, models, agents and tasks of every kind, in scripts and in running loops."""

import asyncio
import gc
import itertools
import json
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.api.environment import Environment
from nemo_gym.api.runs import Run
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.errors import ConfigError, RolloutError
from tests.forked_commands import ForkedCommands

TASKS = [{"prompt": f"What is {n} + {n}?", "expected": 2 * n} for n in range(3)]


async def adder(request: Mapping[str, Any]) -> str:
    """A model that adds, and is wrong about 2."""
    first = request["input"][-1]["content"].split()[2]
    return "3" if first == "2" else str(2 * int(first))


@pytest.fixture
def sums() -> Environment:
    environment = nemo_gym.Environment(tasks=TASKS)
    environment.verify(lambda task, response: float(response.text == str(task["expected"])))
    return environment


def test_a_run_has_numbers_rollouts_and_files(sums: Environment) -> None:
    run = nemo_gym.collect(sums, model=adder, repeats=2)
    assert len(run) == 6
    assert run.mean_reward == pytest.approx(4 / 6)
    assert 0 <= run.mean_reward.low < run.mean_reward < run.mean_reward.high <= 1
    assert run.metrics["mean/reward"] == run.mean_reward
    assert {(rollout.task["expected"], rollout.reward) for rollout in run} == {(0, 1.0), (2, 1.0), (4, 0.0)}
    first = min(run, key=lambda rollout: rollout.key or (9, 9))
    assert first.text == "0"
    assert [message["role"] for message in first.messages] == ["user", "assistant"]
    assert first.tool_calls == []
    assert first.tokens is None
    assert run.failures == []
    assert "6 rollouts" in repr(run)
    assert "<svg" in run._repr_html_()
    assert f'<a href="{run.path.as_uri()}"' in run._repr_html_()
    page = run.view(port=0, wait=False)
    assert f'<a href="{page.url}" target="_blank">the rollouts</a>' in run._repr_html_()
    page.close()


def test_a_run_is_a_table_for_pandas(sums: Environment) -> None:
    pytest.importorskip("pandas")
    table = nemo_gym.collect(sums, model=adder, repeats=2).to_pandas()
    assert list(table.columns[:3]) == ["task", "rollout", "agent"]
    assert table.reward.mean() == pytest.approx(4 / 6)


def test_a_run_without_an_output_owns_its_folder(sums: Environment) -> None:
    run = nemo_gym.collect(sums, model=adder)
    path = run.path
    assert path.is_file()
    del run
    assert not path.exists()


def test_a_run_can_be_loaded_compared_and_exported(sums: Environment, tmp_path: Path) -> None:
    first = nemo_gym.collect(sums, model=adder, output=tmp_path / "a.jsonl")
    nemo_gym.collect(sums, model=lambda request: "4", output=tmp_path / "b.jsonl")
    second = nemo_gym.load(tmp_path / "b.jsonl")
    found = nemo_gym.compare(first, second)
    assert found.tasks == 3
    assert found.difference == pytest.approx(1 / 3 - 2 / 3)
    first.export("sft", tmp_path / "sft.jsonl")
    assert len((tmp_path / "sft.jsonl").read_text().splitlines()) == 2
    with pytest.raises(ConfigError, match=r"min_rewrd.*min_reward"):
        first.export("sft", tmp_path / "other.jsonl", min_rewrd=1)


def test_resuming_runs_only_what_is_missing(sums: Environment, tmp_path: Path) -> None:
    output, calls = tmp_path / "a.jsonl", []

    async def counting(request: Mapping[str, Any]) -> str:
        calls.append(request)
        return await adder(request)

    nemo_gym.collect(sums, model=counting, output=output)
    lines = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(lines[:2]))
    run = nemo_gym.collect(sums, model=counting, output=output, resume=True)
    assert len(run) == 3
    assert len(calls) == 4


def test_an_output_that_is_taken_is_moved_aside_unless_a_resume_was_forgotten(
    sums: Environment, tmp_path: Path
) -> None:
    output = tmp_path / "a.jsonl"
    nemo_gym.collect(sums, model=adder, output=output)
    nemo_gym.collect(sums, model=adder, output=output, repeats=2)
    assert len((tmp_path / "a.jsonl.backup-1" / "a.jsonl").read_bytes().splitlines()) == 3
    output.write_bytes(output.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(ConfigError, match="already holds 1 rollout of the same plan, 5 left") as caught:
        nemo_gym.collect(sums, model=adder, output=output, repeats=2)
    assert "resume=True" in (caught.value.hint or "")
    assert len(nemo_gym.collect(sums, model=adder, output=output, repeats=2, resume=True)) == 6


def test_it_works_inside_a_running_loop_and_as_a_coroutine(sums: Environment) -> None:
    async def main() -> tuple[Run, Run]:
        return nemo_gym.collect(sums, model=adder), await nemo_gym.acollect(sums, model=adder)

    first, second = asyncio.run(main())
    assert len(first) == len(second) == 3


def test_tasks_may_be_a_file_a_list_or_anything_that_yields(sums: Environment, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in sums.rows(TASKS[:1])))
    assert len(nemo_gym.collect(sums, model=adder, tasks=file)) == 1
    assert len(nemo_gym.collect(sums, model=adder, tasks=TASKS[:2])) == 2
    assert len(nemo_gym.collect(sums, model=adder, tasks=(task for task in TASKS))) == 3
    assert len(nemo_gym.collect(sums, model=adder, limit=2)) == 2
    endless = (task for _ in itertools.count() for task in TASKS)
    assert len(nemo_gym.collect(sums, model=adder, tasks=endless, limit=4)) == 4
    with pytest.raises(ConfigError, match="task 1 is not a dictionary"):
        nemo_gym.collect(sums, model=adder, tasks=["What?"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="neither a file nor a dataset"):
        nemo_gym.collect(sums, model=adder, tasks="missing.jsonl")


def test_a_server_class_is_an_environment() -> None:
    class Words(SimpleResourcesServer):
        config: BaseResourcesServerConfig

        def verify(self, task: Any, response: Any) -> float:  # type: ignore[override]
            return float(len(response.text))

    run = nemo_gym.collect(Words, model=lambda request: "four", tasks=[{"prompt": "?"}])
    assert run.mean_reward == 4.0


async def solver(task: dict[str, Any], model: Any, tools: Any) -> str:
    """An agent that asks once, uses a tool, and answers itself."""
    first = await model(f"{task['prompt']} Think.", temperature=0.5)
    assert first.text
    return f"{await tools.double(number=task['expected'] // 2)}"


def test_a_function_is_an_agent(sums: Environment) -> None:
    seen = []

    @sums.tool
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    async def model(request: Mapping[str, Any]) -> str:
        seen.append(request)
        return "Let me see."

    run = nemo_gym.collect(sums, model=model, agent=solver)
    assert run.mean_reward == 1.0
    assert {request["temperature"] for request in seen} == {0.5}
    rollout = next(iter(run))
    assert [call.name for call in rollout.tool_calls] == ["double"]
    assert [item["type"] for item in rollout.response.items] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]


def test_a_function_as_agent_works_on_the_examples_of_an_environment() -> None:
    async def guess(task: dict[str, Any], model: Any, tools: Any) -> str:
        return f"The answer is {await tools.calculator(expression=str(task['expected_answer']))}."

    run = nemo_gym.collect("calculator", model=adder, agent=guess, limit=2)
    assert [rollout.tool_calls[0].name for rollout in run] == ["calculator"] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "no option 'temprature'; did you mean 'temperature'"),
        ({"num_samples_in_paralel": 1}, "did you mean 'num_samples_in_parallel'"),
        ({"limit": "many"}, "limit"),
        ({"agent": "nobody"}, "no agent 'nobody'"),
        ({"model": "openai:"}, "names no model"),
        ({"model": "openai:gpt-5"}, "needs a key"),
        ({"model": "lokal_model"}, "no responses_api_models/lokal_model"),
        ({"workers": 2}, "defined only in this process"),
    ],
    ids=str,
)
def test_mistakes_are_named_before_anything_runs(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    exec("import nemo_gym\ne = nemo_gym.Environment([{'prompt': '?'}])\ne.verify(lambda task, response: 1.0)", space)
    with pytest.raises(ConfigError, match=message):
        nemo_gym.collect(space["e"], **{"model": adder, **options})


@pytest.mark.parametrize(
    ("options", "problem", "hint"),
    [
        ({"temperature": "hot"}, "temperature: Input should be a valid number", "extra_body"),
        ({"model": None}, "None is not a model", "openai:NAME"),
        ({"model": "gpt-4o"}, "no responses_api_models/gpt-4o", "write openai:gpt-4o or anthropic:gpt-4o"),
        ({"agent": 3}, "3 is not an agent", "async def agent"),
        ({"tasks": 3}, "tasks: 3 is not a file", "dictionaries"),
        ({"tasks": ["hello"]}, "task 1 is not a dictionary but str: 'hello'", "to_dict"),
        ({"resume": True}, "there is no output", "output=…"),
        (
            {"settings": {"polcy_model.x": 1}},
            "no key 'polcy_model'; did you mean 'policy_model'?",
            "server begins with",
        ),
    ],
)
def test_what_can_not_work_is_refused_before_the_first_call_and_leaves_no_folder(
    sums: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], problem: str, hint: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(ConfigError, match=re.escape(problem)) as refused:
        nemo_gym.collect(sums, **({"model": adder} | options))
    assert refused.value.__notes__ == [f"\nhint: {refused.value.hint}"]  # a traceback shows it
    assert hint in str(refused.value.hint)
    del refused
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_options_may_have_the_names_of_the_command(sums: Environment, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    run = nemo_gym.collect(
        sums,
        model=adder,
        num_repeats=2,
        output_jsonl_fpath=str(output),
        input_jsonl_fpath=[TASKS[0]],
        agent_name=None,
        resume_from_cache=True,
    )
    assert (run.path, len(run)) == (output, 2)


def test_errors_name_arguments_and_not_what_is_typed_in_a_shell(sums: Environment, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    nemo_gym.collect(sums, model=adder, output=output)
    with pytest.raises(ConfigError, match="another plan") as refused:
        nemo_gym.collect(sums, model=adder, output=output, repeats=2, resume=True)
    assert "resume_mode='extend' to run only what is new" in str(refused.value.hint)
    assert "+" not in str(refused.value.hint)
    with pytest.raises(ConfigError, match=r"no such file\n\nhint: correct input=<file>"):
        nemo_gym.reverify(tmp_path / "missing.jsonl", sums, tmp_path / "again.jsonl")
    sums.verify(lambda task, response: None)
    with pytest.raises(RolloutError, match=r"resume=True retry_failed=\['verifier_error'\]"):
        nemo_gym.collect(sums, model=adder, output=tmp_path / "none.jsonl")


def test_reports_show_themselves(sums: Environment, tmp_path: Path) -> None:
    run = nemo_gym.collect(sums, model=adder, repeats=2)
    assert repr(nemo_gym.compare(run, run)).startswith("3 tasks in both runs, matched by what they ask (0 only in a")
    assert "sft takes solved rollouts" in repr(run.export("sft", tmp_path / "sft.jsonl"))


def test_unknown_environments_are_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError) as refused:
        nemo_gym.collect("calculater")
    assert "calculator" in (refused.value.hint or "")


def test_a_run_in_which_nothing_completed_is_an_error(sums: Environment) -> None:
    async def broken(request: Mapping[str, Any]) -> str:
        raise ValueError("no such model")

    with pytest.raises(RolloutError, match="no rollout was completed"):
        nemo_gym.collect(sums, model=broken)


FILE = """
import nemo_gym

numbers = nemo_gym.Environment(tasks=[{"prompt": str(n), "expected": n} for n in range(4)])

@numbers.setup
def start(task):
    return {"seen": []}

@numbers.tool
def note(text: str, state) -> str:
    "Write something down."
    state["seen"].append(text)
    return "noted"

@numbers.verify
def score(task, response, state):
    return {"reward": float(task["expected"] < 2), "notes": len(state["seen"])}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize(
    "options",
    [{}, {"workers": 2}, {"settings": {"numbers.resources_servers.environment_file.isolation": "process"}}],
    ids=["here", "two workers", "isolated"],
)
def test_a_file_gives_the_same_rewards_wherever_it_runs(file: Path, mock_model: Any, options: dict[str, Any]) -> None:
    run = nemo_gym.collect(file, model="openai:mock", base_url=mock_model.base_url, api_key="none", **options)
    rewards = {rollout.task["expected"]: rollout.reward for rollout in run}
    assert rewards == {0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0}


def test_a_file_that_collects_when_it_is_imported_is_refused(file: Path) -> None:
    file.write_text(FILE + "\nnemo_gym.collect(numbers)\n")
    with pytest.raises(ConfigError, match="collects rollouts when it is imported"):
        nemo_gym.collect(file)


def test_an_interrupt_drains_and_names_the_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio, os, signal, sys, threading
            import nemo_gym
            slow = nemo_gym.Environment(tasks=[{"prompt": str(n)} for n in range(50)])
            slow.verify(lambda task, response: 1.0)
            calls = 0
            async def model(request):
                global calls
                calls += 1
                if calls == 5:
                    os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.3)
                return "done"
            try:
                nemo_gym.collect(slow, model=model, output=sys.argv[1], num_samples_in_parallel=5)
            except KeyboardInterrupt as stopped:
                print("saved", len(stopped.run))
                run = nemo_gym.collect(slow, model=model, output=sys.argv[1], num_samples_in_parallel=5, resume=True)
                print("whole", len(run))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script, tmp_path / "out.jsonl"], capture_output=True, text=True, timeout=60, check=False
    )
    assert signal.SIGINT not in (done.returncode, -done.returncode), done.stderr
    first, second = done.stdout.splitlines()
    assert 5 <= int(first.removeprefix("saved ")) < 50, done.stderr
    assert second == "whole 50"


def test_the_command_takes_the_same_names(
    file: Path, commands: ForkedCommands, mock_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    ran = commands.run(
        "ng", "eval", "run", "numbers.py", "--model", "openai:mock", "--model-url", mock_model.base_url,
        "--model-api-key", "none", "--num-repeats", "2", "--output", "results/numbers.jsonl",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert len(nemo_gym.load("results/numbers.jsonl")) == 8


def test_a_file_can_be_checked_by_playing_it(
    file: Path, commands: ForkedCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    ran = commands.run("ng_check_environment", "numbers.py", "+json=true")
    assert ran.code == 0, ran.out
    (report,) = json.loads(ran.out)
    assert (report["subject"], report["rows"]) == ("numbers", 4)
    assert report["findings"]  # it rewards whatever is said about two of its tasks


def test_importing_the_package_stays_cheap() -> None:
    code = "import sys, nemo_gym; print({'numpy', 'pydantic', 'fastapi', 'omegaconf'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_runs_are_merged_and_scored_again(file: Path, tmp_path: Path) -> None:
    stateless = tmp_path / "stateless.py"
    stateless.write_text(
        "import nemo_gym\n"
        "numbers = nemo_gym.Environment(tasks=[{'prompt': str(n), 'expected': n} for n in range(4)])\n"
        "numbers.verify(lambda task, response: float(task['expected'] < 2))\n"
        "numbers.metrics(lambda tasks: {'mean/tasks': len(tasks)})\n"
    )
    first = nemo_gym.collect(stateless, model=lambda request: "?", limit=2, output=tmp_path / "a.jsonl")
    tasks = [{"prompt": str(n), "expected": n, "_ng_task_index": n} for n in (2, 3)]
    second = nemo_gym.collect(stateless, model=lambda request: "?", tasks=tasks, output=tmp_path / "b.jsonl")
    merged = nemo_gym.aggregate([first, second], tmp_path / "all.jsonl", environment=stateless)
    assert (len(merged), merged.mean_reward, merged.metrics["mean/tasks"]) == (4, 0.5, 4)
    stateless.with_name("strict.py").write_text(stateless.read_text().replace("< 2", "< 1"))
    again = nemo_gym.reverify(
        merged, stateless.with_name("strict.py"), tmp_path / "again.jsonl", resources_server="strict"
    )
    assert again.mean_reward == 0.25


def test_every_verb_of_the_package_can_be_called(sums: Environment, tmp_path: Path) -> None:
    run = nemo_gym.collect(sums, model=adder, output=tmp_path / "a.jsonl")
    for number in range(2):  # importing a module of the same name must not take the place of the function
        nemo_gym.export(run, "sft", tmp_path / f"{number}.jsonl")
    verbs = ("acollect", "aggregate", "benchmark", "collect", "compare", "export", "load", "reverify")
    assert all(callable(getattr(nemo_gym, verb)) for verb in verbs)


BENCHMARK = """
config_paths: [resources_servers/math_answers/configs/math_answers.yaml]
sums: {_inherit_from: math_answers}
sums_agent:
  _inherit_from: math_answers_simple_agent
  responses_api_agents:
    simple_agent:
      resources_server: {name: sums}
      datasets:
      - name: sums
        type: benchmark
        jsonl_fpath: benchmarks/sums/data/sums.jsonl
        prompt_config: benchmarks/prompts/math_boxed.yaml
        prepare_script: benchmarks/sums/prepare.py
        num_repeats: 2
"""
PREPARE = """
from pathlib import Path

def prepare():
    path = Path(__file__).parent / "data" / "sums.jsonl"
    path.parent.mkdir()
    path.write_text('{"question": "What is 1 + 1?", "expected_answer": "2"}\\n')
    return path
"""


@pytest.mark.parametrize("output", [None, "results/sums.jsonl"])
def test_a_benchmark_is_prepared_and_run_as_its_protocol_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "benchmarks" / "sums"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(BENCHMARK)
    (folder / "prepare.py").write_text(PREPARE)
    run = nemo_gym.benchmark("sums", model=lambda _: "\\boxed{2}", output=output)
    assert (len(run), run.mean_reward) == (2, 1.0)


def test_a_compressed_run_is_collected_resumed_merged_and_exported_like_a_plain_one(
    sums: Environment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("zstandard")
    output, plain = tmp_path / "a.jsonl.zst", nemo_gym.collect(sums, model=adder, output=tmp_path / "plain.jsonl")
    whole = nemo_gym.collect(sums, model=adder, output=output)
    assert output.read_bytes().startswith(b"\x28\xb5\x2f\xfd")
    assert (tmp_path / "a_materialized_inputs.jsonl").is_file()
    assert (len(whole), whole.metrics, whole.mean_reward) == (3, plain.metrics, plain.mean_reward)
    output.write_bytes(output.read_bytes()[:-5])
    assert len(nemo_gym.load(output)) < 3
    resumed = nemo_gym.collect(sums, model=adder, output=output, resume=True)
    assert "torn line" in caplog.text
    assert sorted(str(rollout.key) for rollout in resumed) == sorted(str(rollout.key) for rollout in plain)
    resumed.export("sft", tmp_path / "sft.jsonl")
    assert len((tmp_path / "sft.jsonl").read_text().splitlines()) == 2
    again = nemo_gym.reverify(resumed, sums, tmp_path / "again.jsonl.zst")
    assert again.mean_reward == plain.mean_reward
    other = nemo_gym.collect(sums, model=adder, output=tmp_path / "b.jsonl")
    merged = nemo_gym.aggregate([output, other.path], tmp_path / "all.jsonl.zst", on_conflict="repeat")
    assert len(merged) == 6
    assert (tmp_path / "all.jsonl.zst").read_bytes().startswith(b"\x28\xb5\x2f\xfd")
    with pytest.raises(ConfigError, match=r"same names|belongs to the run"):
        nemo_gym.collect(sums, model=adder, output=tmp_path / "a.jsonl")
