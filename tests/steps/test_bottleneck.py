"""What limited a run: named rightly for runs that were made to be limited by one thing, and for figures of others."""

import asyncio
import importlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from nemo_gym.io.files import RunFiles
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.rollout_parameters import RolloutCollectionConfig
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.server_client import GymClient, fetch_usage
from nemo_gym.steps.bottleneck import Cause, find_bottleneck
from nemo_gym.steps.facts import ProcessFacts, RunFacts, longest_session, read_facts
from nemo_gym.steps.rollout_steps import RolloutSteps, Step
from nemo_gym.steps.screen import RunProfile, profile_of, screen_lines, short_lines
from nemo_gym.steps.summary import Spread, StepTimes, TimeSummary, pressure
from nemo_gym.steps.totals import summarise
from tests.forked_commands import ForkedCommands
from tests.ports import free_port

LAB = """
import asyncio, time
from fastapi import FastAPI
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig, BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer,
)


class LabConfig(BaseResourcesServerConfig):
    tool_s: float = 0.0
    verify_s: float = 0.0
    block_s: float = 0.0
    burn_s: float = 0.0
    judgements: int = 0


class Lab(SimpleResourcesServer):
    config: LabConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/get_weather")(self.get_weather)
        return app

    async def get_weather(self) -> dict[str, str]:
        await asyncio.sleep(self.config.tool_s)
        return {"weather": "cold"}

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        time.sleep(self.config.block_s)
        until = time.process_time() + self.config.burn_s
        while time.process_time() < until:
            pass
        await asyncio.sleep(self.config.verify_s)
        for _ in range(self.config.judgements):
            await self.server_client.post("judge", "/v1/responses", json={"input": "Is it right?"})
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


if __name__ == "__main__":
    Lab.run_webserver()
"""


Host = Callable[[dict[str, Any]], AbstractAsyncContextManager[GymClient]]


@asynccontextmanager
async def host_here(config: dict[str, Any]) -> AsyncIterator[GymClient]:
    """The servers of a configuration in this process."""
    async with host_gym(OmegaConf.create(config)) as gym:
        yield gym.client


@pytest.fixture
def host_elsewhere(commands: ForkedCommands, tmp_path: Path) -> Host:
    """The servers of a configuration in an ``ng_run``."""

    @asynccontextmanager
    async def host(config: dict[str, Any]) -> AsyncIterator[GymClient]:
        file = tmp_path / "gym.yaml"
        head = config["head_server"]
        file.write_text(json.dumps(config))
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        with commands.start("ng_run", f"+config_paths=[{file}]", environment=environment) as gym:
            await asyncio.to_thread(gym.read_until, "servers ready!")
            try:
                yield GymClient.load_from_head(BaseServerConfig(**head))
            finally:
                await close_http_client()

    return host


@pytest.fixture
def collect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_model: Any) -> Callable[..., Any]:
    """Collects in an environment with the given settings, on the mock endpoint, and returns the profile of the run."""
    # The first call of a process imports it, which takes as long as several calls of the mock endpoint.
    importlib.import_module("aiohttp")
    folder = tmp_path / "resources_servers" / "lab_for_tests"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(LAB)
    monkeypatch.chdir(tmp_path)
    tasks, output = tmp_path / "tasks.jsonl", tmp_path / "rollouts.jsonl"

    def server(**settings: Any) -> dict[str, Any]:
        return {"entrypoint": "app.py", "host": "127.0.0.1", "port": free_port(), **settings}

    def model(**settings: Any) -> dict[str, Any]:
        endpoint = {"openai_base_url": mock_model.base_url, "openai_api_key": "none", "openai_model": "mock"}
        return {"responses_api_models": {"openai_model": server(**endpoint, **settings)}}

    async def run(
        n: int, at_once: int, lab: dict[str, Any], policy: dict[str, Any] | None = None, *, host: Host = host_here
    ) -> RunProfile:
        row = {"responses_create_params": {"input": [{"role": "user", "content": "How is the weather?"}]}}
        tasks.write_text("".join(json.dumps({**row, "n": number}) + "\n" for number in range(n)))
        references = {
            "resources_server": {"type": "resources_servers", "name": "lab"},
            "model_server": {"type": "responses_api_models", "name": "policy"},
        }
        config = {
            "head_server": {"host": "127.0.0.1", "port": free_port()},
            "lab": {"resources_servers": {"lab_for_tests": server(domain="other", **lab)}},
            "policy": model(**(policy or {})),
            "judge": model(),
            "agent": {"responses_api_agents": {"simple_agent": server(**references)}},
        }
        async with host(config) as client:
            parameters = RolloutCollectionConfig(
                agent_name="agent",
                input_jsonl_fpath=str(tasks),
                output_jsonl_fpath=str(output),
                num_samples_in_parallel=at_once,
                disable_aggregation=True,
                steps=True,
            )
            summary = await RolloutCollectionHelper().collect(parameters, client=client)
        assert summary.completed == n
        return profile_of(RunFiles.of(output))

    return run


@pytest.mark.parametrize(
    ("cause", "endpoint", "n", "at_once", "lab", "policy"),
    [
        (Cause.ENDPOINT, {"latency": "100", "slots": 1}, 20, 12, {}, {}),
        (Cause.LATENCY, {"latency": "250"}, 6, 64, {}, {}),
        (Cause.LIMIT, {"latency": "200"}, 20, 4, {}, {}),
        (Cause.RATE_LIMIT, {"rps": 12}, 16, 16, {}, {}),
        (Cause.SLOTS, {"latency": "80"}, 20, 10, {}, {"max_concurrent_requests": 2}),
        (Cause.ENDPOINT, {"latency": "100", "slots": 1}, 20, 20, {}, {"max_concurrent_requests": 12}),
        (Cause.TOOL, {}, 6, 6, {"tool_s": 0.6}, {}),
        (Cause.VERIFICATION, {}, 6, 6, {"verify_s": 0.6}, {}),
        (Cause.JUDGE, {"latency": "60"}, 6, 6, {"judgements": 5}, {}),
        (Cause.BLOCKING, {}, 10, 5, {"block_s": 0.2}, {}),
        (Cause.CPU, {}, 10, 5, {"burn_s": 0.12}, {}),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, Cause) else "",
)
async def test_the_cause_of_a_real_run_is_named(
    collect: Callable[..., Any],
    mock_model: Any,
    *,
    cause: Cause,
    endpoint: dict[str, Any],
    n: int,
    at_once: int,
    lab: dict[str, Any],
    policy: dict[str, Any],
) -> None:
    mock_model.set(**endpoint)
    profile = await collect(n, at_once, lab, policy)
    assert profile.finding.cause == cause, "\n".join(screen_lines(profile, RunFiles.of(Path("rollouts.jsonl"))))
    assert profile.finding.setting
    lines = list(short_lines(profile))
    assert len(lines) == 3
    assert profile.finding.figure in lines[1]


async def test_the_servers_of_another_process_are_named_if_its_processor_is_full(
    collect: Callable[..., Any], host_elsewhere: Host
) -> None:
    profile = await collect(10, 5, {"burn_s": 0.12}, host=host_elsewhere)
    assert len(profile.facts.servers) == 1
    assert profile.facts.servers[0].cpu_s > 1  # other threads of that process may have taken a little of it
    assert profile.facts.servers_are_busiest
    assert profile.finding.cause == Cause.CPU
    assert "ng_run: " in "\n".join(screen_lines(profile, RunFiles.of(Path("rollouts.jsonl"))))


async def test_a_server_with_a_process_of_its_own_is_counted_by_its_ng_run(
    collect: Callable[..., Any], host_elsewhere: Host
) -> None:
    profile = await collect(10, 5, {"burn_s": 0.12, "isolation": "process"}, host=host_elsewhere)
    _, isolated = profile.facts.servers
    assert isolated.cpu_s > 1


async def test_a_gym_that_happens_to_have_the_head_server_of_our_configuration_is_not_asked(
    collect: Callable[..., Any],
) -> None:
    @asynccontextmanager
    async def host(config: dict[str, Any]) -> AsyncIterator[GymClient]:
        async with host_gym(OmegaConf.create(config), head=True) as gym:
            head = gym.client.head_server_config
            assert await asyncio.to_thread(fetch_usage, head)
            yield GymClient(head_server_config=head, global_config_dict=gym.client.global_config_dict)

    profile = await collect(4, 4, {}, host=host)
    assert not profile.facts.servers


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b'{"here": {}}', b'{"1": {"cpu_s": "much"}}', None])
def test_a_head_server_that_does_not_tell_is_unknown(answer: bytes | None) -> None:
    class Foreign(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if answer is None else 200)
            self.end_headers()
            self.wfile.write(answer or b"")

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Foreign) as server:
        Thread(target=server.handle_request).start()
        head = BaseServerConfig(host="127.0.0.1", port=server.server_port)
        assert fetch_usage(head) == {}
    assert fetch_usage(head) == {}  # nobody listens any more


# ---- figures -------------------------------------------------------------------------------------------------------
MODEL = StepTimes(
    kind="model", server="policy", count=400, own_s=380.0, spread=Spread(0.95, 1.2, 1.4, 2.0), peak=16, alone=0.01
)
SUMMARY = TimeSummary(
    attempts=200, completed=200, seconds=400.0, other_s=5.0, wall_s=25.0, at_once=15.9, peak=16, steps=(MODEL,)
)
FACTS = RunFacts(wall_s=25.0, limit=16, cores=8, processes=[ProcessFacts(2.0, 2.5)], completed=200, attempts=200)


def with_model(**changes: Any) -> TimeSummary:
    return replace(SUMMARY, steps=(replace(MODEL, **changes),))


@pytest.mark.parametrize(
    ("cause", "summary", "facts", "words"),
    [
        (Cause.LIMIT, with_model(idle_s=0.9, busy_s=0.95, calm=2), FACTS, "num_samples_in_parallel=32"),
        (Cause.LIMIT, with_model(idle_s=0.9, busy_s=0.95, calm=2), None, "num_samples_in_parallel=32"),  # the plateau
        # No call had the endpoint nearly to itself: it may be at its capacity, so no number is recommended.
        (Cause.LIMIT, with_model(idle_s=0.9, busy_s=0.95, calm=1), FACTS, "num_samples_in_parallel=auto,"),
        (Cause.LIMIT, SUMMARY, None, "num_samples_in_parallel=auto,"),
        (Cause.LATENCY, SUMMARY, RunFacts(wall_s=25.0, limit=16, adaptive=True), "max_output_tokens"),
        (Cause.LATENCY, replace(SUMMARY, at_once=9.0), FACTS, "max_output_tokens"),
        (Cause.ENDPOINT, with_model(idle_s=0.2, busy_s=0.95), FACTS, "num_samples_in_parallel=4 "),
        # Six of the sixteen are elsewhere, so fewer than nine could not keep the endpoint busy.
        (
            Cause.ENDPOINT,
            replace(with_model(own_s=250.0, idle_s=0.2, busy_s=0.95), other_s=150.0),
            FACTS,
            "num_samples_in_parallel=9 ",
        ),
        (Cause.SLOTS, with_model(own_s=100.0, waited={"slot": 280.0}), FACTS, "max_concurrent_requests"),
        # The endpoint is at its capacity, so more slots would not help.
        (
            Cause.ENDPOINT,
            with_model(own_s=100.0, waited={"slot": 280.0}, idle_s=0.06, busy_s=0.25),
            FACTS,
            "num_samples_in_parallel=2 ",
        ),
        (Cause.CONNECTIONS, with_model(own_s=100.0, waited={"connection": 280.0}), FACTS, "connector_limit"),
        (Cause.RATE_LIMIT, with_model(own_s=9.0, waited={"gate": 300.0}, retries={"429": 9}), FACTS, "rate"),
        (Cause.RATE_LIMIT, with_model(own_s=9.0, waited={"retry": 300.0}, retries={"429": 9}), FACTS, "rate"),
        (
            Cause.RATE_LIMIT,
            with_model(own_s=180.0, waited={"gate": 110.0, "retry": 100.0}, retries={"429": 9}),
            FACTS,
            "rate",
        ),
        (Cause.ENDPOINT, with_model(own_s=9.0, waited={"retry": 300.0}, retries={"500": 9}), FACTS, "log"),
        (Cause.CPU, SUMMARY, RunFacts(wall_s=25.0, cores=8, processes=[ProcessFacts(24.0, 24.5)]), "+workers=auto"),
        (Cause.CPU, SUMMARY, RunFacts(wall_s=25.0, cores=2, processes=[ProcessFacts(24.0, 24.5)] * 3), "machines"),
        (Cause.CPU, SUMMARY, RunFacts(wall_s=25.0, cores=2, processes=[ProcessFacts(6.0, 24.5)]), "other programs"),
        (
            Cause.CPU,
            SUMMARY,
            RunFacts(wall_s=25.0, cores=8, processes=[ProcessFacts(2.0, 2.5)], servers=[ProcessFacts(24.0, 24.5)]),
            "num_workers",
        ),
        (Cause.DISK, SUMMARY, RunFacts(wall_s=25.0, append_s=12.0), "faster disk"),
        (Cause.FAILURES, replace(SUMMARY, failed_s=300.0, failures={"timeout": 9}), FACTS, "failures file"),
        (Cause.AGENT, replace(SUMMARY, other_s=390.0, steps=()), FACTS, "profiling_enabled"),
        (Cause.NOTHING, replace(SUMMARY, attempts=2), FACTS, ""),
        (Cause.NOTHING, TimeSummary(), None, ""),
    ],
)
def test_the_cause_follows_from_the_figures(
    cause: Cause, summary: TimeSummary, facts: RunFacts | None, words: str
) -> None:
    finding = find_bottleneck(summary, facts)
    assert finding.cause == cause
    assert words in f"{finding.setting} "


def test_a_night_between_two_sessions_is_not_time_of_the_run() -> None:
    def attempts(start: float) -> list[RolloutSteps]:
        model = [Step(kind="model", server="policy", route="", start=0.0, duration=1.0, status=200)]
        times = [(start + number // 4, number) for number in range(40)]
        return [
            RolloutSteps(
                task=0, rollout=number, attempt=1, started_at=at, duration=1.0, outcome="completed", steps=model
            )
            for at, number in times
        ]

    one, both = summarise(attempts(0.0)), summarise([*attempts(0.0), *attempts(40_000.0)])
    assert (one.wall_s, one.break_s, one.peak) == (10.0, 0.0, 4)
    assert (both.wall_s, both.break_s) == (20.0, 40_000.0 - 10.0)
    assert both.at_once == pytest.approx(one.at_once, rel=0.1)
    assert find_bottleneck(both, None).cause == Cause.LIMIT
    profile = RunProfile(both, None, find_bottleneck(both, None))
    assert "without 39990 s in which nothing ran" in "\n".join(screen_lines(profile, RunFiles.of(Path("r.jsonl"))))


def test_calls_that_begin_together_show_a_queue_in_whatever_order_they_are_served() -> None:
    waves = np.repeat(np.arange(4) * 1.2, 12)
    in_turn = np.concatenate([np.linspace(0.1, 1.2, 12), np.full(36, 1.2)])
    backwards = np.concatenate([in_turn[11::-1], in_turn[12:]])
    for durations in (in_turn, backwards):
        found = pressure(waves + np.tile(np.arange(12) * 1e-3, 4), durations)
        assert found["busy_s"] > 2 * found["idle_s"]
    random = np.random.default_rng(0)  # answers of very different lengths, but no queue
    steady = pressure(np.repeat(np.arange(8) * 9.0, 64), random.lognormal(0.0, 0.7, 512))
    assert steady["busy_s"] < 1.5 * steady["idle_s"]


def test_a_verifier_that_waits_for_its_judge_is_not_blamed_for_a_machine_that_is_slow() -> None:
    verify = StepTimes(kind="verify", server="lab", count=6, own_s=0.05, spread=Spread(0.34, 0.35, 0.35, 0.35, 0.33))
    judge = StepTimes(kind="judge", server="judge", count=30, own_s=2.0, spread=Spread(0.064, 0.07, 0.08, 0.08, 0.06))
    summary = TimeSummary(
        attempts=6, completed=6, seconds=4.4, other_s=0.7, wall_s=1.2, at_once=3.5, peak=6, steps=(judge, verify)
    )
    slow = RunFacts(wall_s=1.2, blocked_s=0.7, limit=6, cores=2, processes=[ProcessFacts(0.2, 0.8)])
    assert find_bottleneck(summary, slow).cause == Cause.JUDGE


def test_many_small_shares_are_not_blamed_on_the_largest() -> None:
    steps = tuple(StepTimes(kind=kind, server="s", count=10, own_s=80.0) for kind in ("seed", "tool", "verify", "call"))
    finding = find_bottleneck(replace(SUMMARY, other_s=80.0, steps=steps), FACTS)
    assert finding.cause == Cause.NOTHING
    assert not finding.setting


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"sessions": 3}', b'{"sessions":[{"wall_s":"long"}]}'])
def test_facts_that_are_missing_or_damaged_are_unknown(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "rollouts_timing.json"
    if content is not None:
        path.write_bytes(content)
    assert longest_session(read_facts(path)) is None
