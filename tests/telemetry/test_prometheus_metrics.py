"""``GET /metrics``: scraped over HTTP from a head server and from a collector, and read by the official parser."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from omegaconf import DictConfig

from nemo_gym.config.parse import parse_config
from nemo_gym.errors import ConfigError
from nemo_gym.io.files import RunFiles
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.attempt import AgentAttempt, recorded
from nemo_gym.rollouts.options import TelemetryOptions
from nemo_gym.rollouts.run import RunListener
from nemo_gym.rollouts.store.outcome import Outcome, PlannedRollout
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.server_client import GymClient
from nemo_gym.steps.rollout_steps import Step, StepRetry
from nemo_gym.telemetry.listeners import telemetry
from nemo_gym.telemetry.served_requests import counting_requests
from nemo_gym.telemetry.trackers import TrackedRun

pytest.importorskip("prometheus_client", reason="needs the extra prometheus")
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from nemo_gym.telemetry.prometheus_metrics import MOST_VALUES, OTHER, RunMeters
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
ENVIRONMENT = "resources_servers/example_single_tool_call"
AGENT = "example_single_tool_call_simple_agent"
KEY = "sk-a-secret-key"


def configuration(base_url: str, *extra: str) -> DictConfig:
    model = "responses_api_models/openai_model/configs/openai_model.yaml"
    paths = f"{ENVIRONMENT}/configs/example_single_tool_call.yaml,{model}"
    policy = [f"+policy_base_url={base_url}", f"+policy_api_key={KEY}", "+policy_model_name=mock"]
    head = f"+head_server={{host: 127.0.0.1, port: {free_port()}}}"
    return parse_config([f"+config_paths=[{paths}]", head, *policy, *extra]).config


def planned(number: int) -> PlannedRollout:
    task = json.loads((ROOT / ENVIRONMENT / "data/example.jsonl").read_text().splitlines()[0])
    row = {**task, "_ng_task_index": number, "_ng_rollout_index": 0, "agent_ref": {"name": AGENT}}
    return PlannedRollout.of(row, last_attempt=3)


async def scrape(url: str, accept: str = "") -> str:
    async with aiohttp.ClientSession() as session, session.get(url, headers={"accept": accept}) as answer:
        assert answer.status == 200
        return await answer.text()


class Samples:
    """The values of a scrape."""

    def __init__(self, text: str, *, openmetrics: bool = False) -> None:
        self.text = text
        families = (parse_openmetrics if openmetrics else text_string_to_metric_families)(text)
        self._all = [sample for family in families for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float | None:
        """The sum of all samples with that name and these labels; None if there are none."""
        found = [s.value for s in self._all if s.name == f"rollout_gym_{name}" and labels.items() <= s.labels.items()]
        return sum(found) if found else None

    def values(self, label: str) -> set[str]:
        return {sample.labels[label] for sample in self._all if label in sample.labels}


def check_calls(found: Samples, rollouts: int) -> None:
    """Two model calls and one of each other kind in every rollout."""
    assert found("model_calls_total", server="policy_model", status="200") == 2 * rollouts
    assert found("tokens_total", server="policy_model", kind="input") == 200 * rollouts
    assert found("tokens_total", server="policy_model", kind="output") == 40 * rollouts
    for kind, tool, times in [("model", "", 2), ("tool", "get_weather", 1), ("seed", "", 1), ("verify", "", 1)]:
        assert found("call_duration_seconds_count", kind=kind, tool=tool) == times * rollouts
    assert found("rollout_duration_seconds_count", agent=AGENT) == rollouts
    assert KEY not in found.text
    assert "weather?" not in found.text


@pytest.mark.parametrize("with_steps", [False, True])
async def test_the_head_server_counts_what_servers_are_asked_from_the_first_scrape_on(
    mock_model: Any, with_steps: bool
) -> None:
    async with host_gym(configuration(mock_model.base_url), head=True, metrics=counting_requests) as gym:
        head = gym.client.head_server_config
        far = GymClient(head_server_config=head, global_config_dict=gym.config)
        attempt = recorded(AgentAttempt(far)) if with_steps else AgentAttempt(far)
        url = f"http://{head.host}:{head.port}/metrics"
        await attempt(planned(0))
        before = Samples(await scrape(url))
        ended = [await attempt(planned(number)) for number in range(3)]
        after = Samples(await scrape(url))
        async with aiohttp.ClientSession() as session:
            instance = next(i for i in gym.instances if i.name == AGENT)
            async with session.post(f"http://{instance.host}:{instance.port}/run", json={}) as answer:
                assert answer.status == 422
        refused = Samples(await scrape(url, "application/openmetrics-text; version=1.0.0"), openmetrics=True)
    assert before("rollouts_total") is None
    check_calls(after, rollouts=3)
    assert after("rollouts_total", agent=AGENT, outcome="completed") == 3
    assert after("rollouts_in_flight") == 0
    assert bool(ended[0].steps) == with_steps
    assert refused("rollouts_total", agent=AGENT, outcome="failed") == 1
    assert refused("rollout_failures_total", failure_class="status_422") == 1


@pytest.mark.parametrize("with_steps", [False, True])
@pytest.mark.parametrize(
    "isolated",
    [
        (f"++{AGENT}.responses_api_agents.simple_agent.isolation=process",),
        ("++policy_model.responses_api_models.openai_model.num_workers=2",),
        (
            f"++{AGENT}.responses_api_agents.simple_agent.num_workers=2",
            "++example_single_tool_call.resources_servers.example_single_tool_call.isolation=process",
        ),
    ],
)
async def test_servers_in_processes_of_their_own_are_counted_once(
    mock_model: Any, isolated: tuple[str, ...], with_steps: bool
) -> None:
    async with host_gym(configuration(mock_model.base_url, *isolated), head=True, metrics=counting_requests) as gym:
        head = gym.client.head_server_config
        far = GymClient(head_server_config=head, global_config_dict=gym.config)
        attempt = recorded(AgentAttempt(far)) if with_steps else AgentAttempt(far)
        url = f"http://{head.host}:{head.port}/metrics"
        await scrape(url)
        for number in range(4):
            await attempt(planned(number))
        found = Samples(await scrape(url))
        newer = Samples(await scrape(url, "application/openmetrics-text; version=1.0.0"), openmetrics=True)
        await far.post("policy_model", "/v1/responses", json={"input": "hello"})
        asked_directly = Samples(await scrape(url))
    for samples in (found, newer):
        check_calls(samples, rollouts=4)
        assert samples("rollouts_total", agent=AGENT, outcome="completed") == 4
        assert samples("rollouts_in_flight") == 0
    assert asked_directly("model_calls_total", server="policy_model", status="200") == 9


async def test_a_process_that_does_not_answer_does_not_hold_up_the_scrape(mock_model: Any) -> None:
    isolated = f"++{AGENT}.responses_api_agents.simple_agent.isolation=process"
    async with host_gym(configuration(mock_model.base_url, isolated), head=True, metrics=counting_requests) as gym:
        head = gym.client.head_server_config
        url = f"http://{head.host}:{head.port}/metrics"
        await scrape(url)
        [child] = gym.supervisors[0].processes
        os.kill(child.pid, signal.SIGSTOP)
        try:
            found = Samples(await scrape(url))
        finally:
            os.kill(child.pid, signal.SIGCONT)
    assert found("event_loop_lag_seconds_count") is not None


async def test_a_model_server_that_others_call_counts_its_calls(mock_model: Any) -> None:
    async with host_gym(configuration(mock_model.base_url), head=True, metrics=counting_requests) as gym:
        head = gym.client.head_server_config
        url = f"http://{head.host}:{head.port}/metrics"
        await scrape(url)
        far = GymClient(head_server_config=head, global_config_dict=gym.config)
        await far.post(server_name="policy_model", url_path="/v1/responses", json={"input": "hello"})
        found = Samples(await scrape(url))
    assert found("model_calls_total", server="policy_model", status="200") == 1
    assert found("tokens_total", kind="output") == 20


class Scraping(RunListener):
    """A listener that scrapes once a number of attempts have ended, in the middle of the run."""

    def __init__(self, port: int, at: int) -> None:
        self.port = port
        self.left = at
        self.scrapes: list[asyncio.Task[str]] = []

    def outcomes_saved(self, outcomes: Iterable[Outcome]) -> None:
        self.left -= len(list(outcomes))
        if self.left <= 0 and not self.scrapes:
            url = f"http://127.0.0.1:{self.port}/metrics"
            self.scrapes.append(asyncio.get_running_loop().create_task(scrape(url)))


async def test_a_collector_serves_metrics_of_its_run_while_it_goes_on(
    mock_model: Any, tmp_path: Path, unused_tcp_port: int
) -> None:
    mock_model.set(latency="0.05")
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text((ROOT / ENVIRONMENT / "data/example.jsonl").read_text().splitlines()[0] + "\n")
    parameters = RolloutCollectionConfig(
        agent_name=AGENT,
        input_jsonl_fpath=str(tasks),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
        num_repeats=12,
        num_samples_in_parallel=2,
        metrics_port=unused_tcp_port,
        disable_aggregation=True,
    )
    assert parameters.steps
    scraping = Scraping(unused_tcp_port, at=4)
    async with host_gym(configuration(mock_model.base_url)) as gym:
        summary = await RolloutCollectionHelper().collect(parameters, client=gym.client, listener=scraping)
        found = Samples(await scraping.scrapes[0])
        with pytest.raises(aiohttp.ClientConnectorError):  # nothing is served when the run is over
            await scrape(f"http://127.0.0.1:{unused_tcp_port}/metrics")
    assert summary.completed == 12
    done = found("rollouts_total", agent=AGENT, outcome="completed")
    assert done is not None
    assert 4 <= done < 12
    check_calls(found, rollouts=int(done))
    assert found("rollouts_limit") == 2
    in_flight = found("rollouts_in_flight")
    assert in_flight is not None
    assert 0 < in_flight <= 2
    assert found("event_loop_lag_seconds_count") is not None


def test_labels_are_names_and_not_too_many_of_them() -> None:
    meters = RunMeters()
    invented = [Step("tool", "tools", tool=f"tell me more\n{number}", status=404) for number in range(3)]
    lies = [Step("tool", f"server {number}", tool="x" * 1000, status=200) for number in range(2 * MOST_VALUES)]
    retried = Step("model", "m", retries=[StepRetry(0.1, "429")], waited=0.5, waited_for="retry")
    meters.count_steps([*invented, *lies, retried])
    found = Samples(bytes(meters.page("").body).decode())
    assert found.values("tool") == {OTHER, ""}
    assert len(found.values("server")) <= MOST_VALUES + 1
    assert found("call_retries_total", reason="429") == 1
    assert found("call_waiting_seconds_total", cause="retry") == 0.5


def test_tokens_that_two_model_servers_tell_are_counted_once() -> None:
    meters = RunMeters()
    outer = Step("model", "router", tokens_in=10, status=200)
    meters.count_steps([outer, Step("model", "engine", tokens_in=10, status=200, parent=0)])
    found = Samples(bytes(meters.page("").body).decode())
    assert found("tokens_total") == 10
    assert found("model_calls_total") == 2


async def test_without_the_package_the_answer_says_what_to_install(
    mock_model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "nemo_gym.telemetry.prometheus_metrics", raising=False)
    async with host_gym(configuration(mock_model.base_url), head=True, metrics=counting_requests) as gym:
        head = gym.client.head_server_config
        url = f"http://{head.host}:{head.port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 501
            assert "rollout-gym[prometheus]" in await answer.text()
    run = TrackedRun(
        files=RunFiles.of(tmp_path / "x.jsonl"),
        settings={},
        options=TelemetryOptions(metrics_port=0),
        configuration=dict,
    )
    with pytest.raises(ConfigError, match="metrics_port needs the package prometheus_client"):
        async with telemetry(run):
            pass
