"""Causes outside the rollouts: the run pauses, goes on by itself, or ends with everything owed."""

import os
import re
import shlex
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.outage import DIFFERENT, MOST_TRIES, STREAK, OutageWatch
from nemo_gym.rollouts.store.outcome import Completed, Failed, Failure, PlannedRollout
from nemo_gym.rollouts.tally import Ending
from tests.forked_commands import ForkedCommands
from tests.ports import free_port

if TYPE_CHECKING:
    from conftest import MockModel

Make = Callable[..., PlannedRollout]
Agents = Callable[..., AbstractAsyncContextManager[Any]]
EXAMPLE = "resources_servers/example_single_tool_call"
CONFIGS = f"{EXAMPLE}/configs/example_single_tool_call.yaml,responses_api_models/openai_model/configs/openai_model.yaml"


def unreachable(planned: PlannedRollout, kind: str = "connection") -> Failed:
    return Failed(planned, b"", 0.0, Failure.of(kind, "nobody there"))


def test_a_worker_that_dies_with_all_it_had_is_not_an_outage(planned: Make) -> None:
    watch = OutageWatch(60)
    for n in range(10 * STREAK):
        watch.observe(unreachable(planned(n), "worker_died"), now=float(n))
    assert not watch.is_on


@pytest.mark.parametrize("kind", ["worker_died", "timeout"])
def test_a_probe_that_says_nothing_is_followed_by_another(planned: Make, kind: str) -> None:
    watch = OutageWatch(600)
    for n in range(STREAK):
        watch.observe(unreachable(planned(n)), now=0.0)
    assert watch.room(100.0) == 1
    watch.started()
    assert watch.room(100.0) == 0
    watch.observe(unreachable(planned(0), kind), now=101.0)
    assert watch.room(101.0) == 1


def test_a_single_failure_pauses_nothing(planned: Make) -> None:
    watch = OutageWatch(60)
    for n in range(STREAK - 1):
        watch.observe(unreachable(planned(n)), 0)
    assert watch.room(0) is None
    watch.observe(Completed(planned(9), b"", 0.0, 1.0), 0)
    watch.observe(unreachable(planned(0)), 0)
    assert not watch.is_on


def test_one_rollout_that_always_fails_is_no_outage(planned: Make) -> None:
    watch = OutageWatch(60)
    for _ in range(3 * STREAK):
        watch.observe(unreachable(planned(0)), 0)
    assert not watch.is_on


def test_during_an_outage_one_rollout_at_a_time_finds_out_whether_it_is_over(planned: Make) -> None:
    watch = OutageWatch(60)
    for n in range(STREAK):
        watch.observe(unreachable(planned(n)), 0)
    assert (watch.room(0), watch.next_change(0)) == (0, 1.0)
    assert watch.room(1.0) == 1
    watch.started()
    assert (watch.room(1.5), watch.next_change(1.5)) == (0, 60.0)
    watch.observe(unreachable(planned(0)), 2)
    assert (watch.room(3.4), watch.room(3.5)) == (0, 1), "the next probe waits longer"
    watch.observe(Completed(planned(0), b"", 0.0, 1.0), 5)
    assert watch.room(5) is None


def test_patience_begins_with_the_first_failure_and_ends(planned: Make) -> None:
    watch = OutageWatch(10)
    for n in range(STREAK):
        watch.observe(unreachable(planned(n)), float(n))
    assert not watch.is_over(9.9)
    assert watch.is_over(10.0)


def test_a_rollout_that_fails_while_others_get_through_is_left_for_the_next_run(planned: Make) -> None:
    watch = OutageWatch(600)
    tries = [watch.tries(unreachable(planned(0)), 0) for _ in range(MOST_TRIES)]
    assert tries == [*range(1, MOST_TRIES), None]


def test_an_endpoint_that_never_answered_ends_the_run_long_before_patience(planned: Make) -> None:
    watch = OutageWatch(600, unanswered_s=20)
    for n in range(STREAK):
        watch.observe(unreachable(planned(n), "unreachable"), float(n))
    assert not watch.is_over(19.9)
    assert watch.next_change(4.0) == 5.0
    assert watch.is_over(20.0)
    assert watch.why_it_ended() == "the endpoint has not answered a single request: nobody there"


def test_the_time_that_the_first_attempt_took_is_part_of_the_wait(planned: Make) -> None:
    watch = OutageWatch(600, unanswered_s=20)
    slow = Failed(planned(0), b"", 25.0, Failure.of("unreachable", "no connection"))
    watch.observe(slow, 25.0)
    assert watch.tries(slow, 25.0) is None


@pytest.mark.parametrize("kind", ["connection", "model_error", "rate_limited"])
def test_patience_is_for_endpoints_that_did_answer(planned: Make, kind: str) -> None:
    watch = OutageWatch(600, unanswered_s=20)
    watch.observe(unreachable(planned(0), kind), 0.0)
    for n in range(STREAK):
        watch.observe(unreachable(planned(n), "unreachable"), 1.0)  # of a worker that was started meanwhile
    assert watch.is_on
    assert not watch.is_over(599.0)
    assert watch.notice(100.0) == "paused, gives up in 500 s, Ctrl-C loses nothing"
    assert "nothing got through for 600 s (patience_s)" in watch.why_it_ended()


def test_one_of_two_endpoints_that_never_answered_is_not_waited_for(planned: Make) -> None:
    watch = OutageWatch(600, unanswered_s=20)
    watch.observe(Completed(planned(9, agent="beta"), b"", 0.0, 1.0), 0.0)
    failed = unreachable(planned(0), "unreachable")
    watch.observe(failed, 1.0)
    assert watch.tries(failed, 1.0) == 1
    watch.observe(Completed(planned(8, agent="beta"), b"", 0.0, 1.0), 30.0)
    watch.observe(failed, 30.0)
    assert watch.tries(failed, 30.0) is None


@pytest.mark.parametrize("kind", ["auth", "quota"])
def test_a_refused_key_ends_the_run_at_once_unless_others_get_through(planned: Make, kind: str) -> None:
    watch = OutageWatch(600)
    refused = [unreachable(planned(n), kind) for n in range(DIFFERENT)]
    watch.observe(refused[0], 0.0)
    watch.observe(refused[1], 0.0)
    watch.observe(Completed(planned(9), b"", 0.0, 1.0), 0.0)
    watch.observe(refused[2], 0.0)
    assert not watch.is_over(0.0)
    watch.observe(refused[0], 0.0)
    watch.observe(refused[1], 0.0)
    assert watch.is_over(0.0)
    assert watch.why_it_ended() == f"{kind}: nobody there"
    assert watch.tries(refused[0], 0.0) is None


def config(tasks: Path, output: Path, **options: Any) -> RolloutCollectionConfig:
    given = {"agent_name": "alpha", "input_jsonl_fpath": str(tasks), "output_jsonl_fpath": str(output)}
    return RolloutCollectionConfig.model_validate({**given, **options})


async def test_an_outage_costs_no_attempts_and_what_it_left_is_resumed(
    agents_with: Agents, tasks_file: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output, down = tmp_path / "out.jsonl", True

    def answer(*_: Any) -> Any:
        return web.Response(status=503, text="down") if down else {"reward": 1.0}

    async with agents_with(answer) as agents:
        helper = RolloutCollectionHelper()
        first = await helper.collect(config(tasks_file(20), output, patience_s=0.5), client=agents)
        assert (first.tally.ending, first.exit_code, first.completed) == (Ending.OUTAGE, 3, 0)
        assert "20 that are left, add: +resume_from_cache=true" in first.text()
        assert caplog.text.count("Nothing gets through") == 1, "it is said once"
        down = False
        again = await helper.collect(config(tasks_file(20), output, resume_from_cache=True), client=agents)
        assert (again.completed, again.exit_code) == (20, 0)


async def test_a_run_goes_on_by_itself_when_the_outage_ends(
    agents_with: Agents, tasks_file: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent = 0

    def answer(*_: Any) -> Any:
        nonlocal sent
        sent += 1
        return web.Response(status=429) if 5 < sent < 12 else {"reward": 1.0}

    async with agents_with(answer) as agents:
        wanted = config(tasks_file(20), tmp_path / "out.jsonl", num_samples_in_parallel=10)
        summary = await RolloutCollectionHelper().collect(wanted, client=agents)
    assert summary.exit_code == 0
    assert summary.tally.failures["rate_limited"].attempts == 6
    assert "continues after a pause" in caplog.text


def test_the_advice_that_is_printed_works_when_it_is_typed(
    commands: ForkedCommands, mock_model: "MockModel", tmp_path: Path
) -> None:
    output, model = tmp_path / "out.jsonl", "policy_model.responses_api_models.openai_model"
    common = [
        *("ng_collect_rollouts", f"+config_paths=[{CONFIGS}]", "+policy_api_key=none", "+policy_model_name=mock"),
        *(f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl", f"+output_jsonl_fpath={output}", "+patience_s=0"),
        *("+agent_name=example_single_tool_call_simple_agent", f"++{model}.max_retries=0"),
    ]
    down = commands.run(*common, f"+policy_base_url=http://127.0.0.1:{free_port()}/v1")
    assert down.code == 3, down.err
    advice = re.search(r"^To run the 5 that are left, add: (.*)$", down.err, re.MULTILINE)
    assert advice is not None, down.err
    resumed = commands.run(*common, f"+policy_base_url={mock_model.base_url}", *shlex.split(advice[1]))
    assert resumed.code == 0, resumed.err
    assert len(output.read_text().splitlines()) == 5

    # An error of the rollouts themselves does use up their attempts, and then the advice is another.
    second = [argument.replace(str(output), str(tmp_path / "second.jsonl")) for argument in common]
    mock_model.set(faults="malformed:1")
    try:
        once = {**os.environ, "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS": "1"}
        broken = commands.run(*second, f"+policy_base_url={mock_model.base_url}", environment=once)
    finally:
        mock_model.set(faults="none:0")
    advice = re.search(r"^To try again the 5 whose attempts are used up, add: (.*)$", broken.err, re.MULTILINE)
    assert advice is not None, broken.err
    mended = commands.run(*second, f"+policy_base_url={mock_model.base_url}", *shlex.split(advice[1]), environment=once)
    assert mended.code == 0, mended.err


def gym_command(mock_model: "MockModel", head: int) -> list[str]:
    return [
        *("ng_run", f"+config_paths=[{CONFIGS}]", "+policy_api_key=none", "+policy_model_name=mock"),
        *(f"+policy_base_url={mock_model.base_url}", f"+head_server={{host: 127.0.0.1, port: {head}}}"),
    ]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.02)


def test_a_gym_that_is_killed_and_started_again_is_waited_for(
    commands: ForkedCommands, mock_model: "MockModel", tmp_path: Path
) -> None:
    output, head = tmp_path / "out.jsonl", free_port()
    mock_model.set(latency="100")  # so that the collector is not done before the Gym is killed
    collect = [
        *("ng_collect_rollouts", "+agent_name=example_single_tool_call_simple_agent", "+num_repeats=20"),
        *(f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl", f"+output_jsonl_fpath={output}"),
        *(f"+head_server={{host: 127.0.0.1, port: {head}}}", "+num_samples_in_parallel=4", "+patience_s=100"),
    ]
    with commands.start(*gym_command(mock_model, head)) as gym:
        gym.read_until("servers ready!")
        collector = commands.start(*collect)
        wait_until(lambda: output.exists() and output.stat().st_size > 20_000, "something is saved")
        gym.kill()
        gym.wait()
    mock_model.set(latency="0")
    with collector, commands.start(*gym_command(mock_model, head)):
        ran = collector.wait()
    assert ran.code == 0, ran.err
    assert ran.err.count("Nothing gets through") == 1, ran.err
    assert len(output.read_text().splitlines()) == 100


@pytest.mark.parametrize("how", ["in process", "workers", "ng_run"])
def test_an_endpoint_that_is_not_there_ends_the_run_with_the_fix(
    commands: ForkedCommands, tmp_path: Path, how: str
) -> None:
    output, head, url = tmp_path / "out.jsonl", free_port(), f"http://127.0.0.1:{free_port()}/v1"
    gym = [
        *(f"+config_paths=[{CONFIGS}]", "+policy_api_key=none", "+policy_model_name=mock"),
        *(f"+policy_base_url={url}", f"+head_server={{host: 127.0.0.1, port: {head}}}"),
    ]
    collect = [
        *("ng_collect_rollouts", "+agent_name=example_single_tool_call_simple_agent", "+limit=3", "+patience_s=0.5"),
        *(f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl", f"+output_jsonl_fpath={output}"),
        *([f"+head_server={{host: 127.0.0.1, port: {head}}}"] if how == "ng_run" else gym),
        *(["+workers=2"] if how == "workers" else []),
    ]
    with ExitStack() as stack:
        if how == "ng_run":
            stack.enter_context(commands.start("ng_run", *gym)).read_until("servers ready!")
        ran = commands.run(*collect)
    assert ran.code == 3, ran.err
    assert "stopped: the endpoint has not answered a single request" in ran.err
    assert f"model mock at {url}: cannot connect: Connection refused" in ran.err
    assert "check that the endpoint is up and that its base URL is right" in ran.err
    assert "0/3" in ran.err
    assert "1/3" not in ran.err
    assert "To run the 3 that are left, add: +resume_from_cache=true" in ran.err
