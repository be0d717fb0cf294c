"""The metrics of one run or several: computed here, or asked for."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from omegaconf import OmegaConf

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.io.files import RunFiles
from nemo_gym.metrics.aggregate import compute_aggregate_metrics
from nemo_gym.rollouts.agents import agents_of
from nemo_gym.rollouts.run_metrics import PlannedKeys, aggregate_run, has_default_metrics
from nemo_gym.rollouts.tally import Summary, Tally, read_spending
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.schemas.rows import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.loader import build_app
from nemo_gym.servers.server_client import GymClient
from responses_api_agents.simple_agent.app import SimpleAgent

Agents = Callable[[Callable[..., Any]], AbstractAsyncContextManager[Any]]


def write_run(folder: Path, rollouts: list[dict[str, Any]], *, plan: int = 0, failures: Any = ()) -> RunFiles:
    files = RunFiles.of(folder / "out.jsonl")
    files.rollouts.write_text("".join(json.dumps(each) + "\n" for each in rollouts))
    if plan:
        rows = [{**rollout(task, 0), "reward": None} for task in range(plan)]
        files.plan.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files.failures.write_text("".join(json.dumps(each) + "\n" for each in failures))
    return files


def rollout(task: int, repeat: int, agent: str = "alpha", **fields: Any) -> dict[str, Any]:
    return {
        "_ng_task_index": task,
        "responses_create_params": {"input": "question"},
        "response": {"output": [{"type": "function_call"}], "usage": {"total_tokens": 7}},
        "reward": float(repeat),
        "agent_ref": {"name": agent},
        **fields,
        "_ng_rollout_index": repeat,
    }


def leftovers(folder: Path) -> list[Path]:
    return [*folder.glob(".*"), *folder.glob("*.tmp")]


@asynccontextmanager
async def asked(**handlers: Any) -> AsyncIterator[GymClient]:
    """A client of agents on a real port, each of which answers as its handler says."""
    runner = web.AppRunner(app := web.Application(client_max_size=2**30), shutdown_timeout=0.1)
    for name, handler in handlers.items():
        app.router.add_post(f"/{name}/aggregate_metrics", handler)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    head = BaseServerConfig(host="127.0.0.1", port=1)
    client = GymClient(head_server_config=head, global_config_dict=OmegaConf.create({}))
    client.addresses.update({name: f"http://127.0.0.1:{runner.addresses[0][1]}/{name}" for name in handlers})
    try:
        yield client
    finally:
        await close_http_client()
        await runner.cleanup()


async def default_answer(request: web.Request) -> web.Response:
    metrics = compute_aggregate_metrics((await request.json())["verify_responses"])
    return web.Response(text=metrics.model_dump_json(), content_type="application/json")


async def test_what_is_computed_here_is_what_an_agent_would_answer(tmp_path: Path) -> None:
    records = [rollout(task, repeat, name) for name, task in (("beta", 3), ("alpha", 1)) for repeat in (1, 0)]
    files = write_run(tmp_path, records)
    assert [each.agent for each in await aggregate_run(files, None)] == ["alpha", "beta"]
    here = files.metrics.read_bytes()
    files.metrics.unlink()
    async with asked(alpha=default_answer, beta=default_answer) as client:
        metrics = await aggregate_run(files, client)
    assert files.metrics.read_bytes() == here
    assert metrics[0].key_metrics == {"mean/reward": 0.5, "mean/total_tokens": 7.0}
    assert [entry["agent_ref"]["name"] for entry in json.loads(here)] == ["alpha", "beta"]


async def test_agents_get_scores_and_token_counts_in_the_order_of_the_keys(tmp_path: Path) -> None:
    received = []

    async def answer(request: web.Request) -> web.Response:
        received.append(await request.json())
        return web.json_response({"key_metrics": {"x": 1}})

    async with asked(alpha=answer) as client:
        await aggregate_run(write_run(tmp_path, [rollout(1, 0), rollout(0, 1), rollout(0, 0)]), client)
    ((sent),) = received
    assert [(each["_ng_task_index"], each["_ng_rollout_index"]) for each in sent["verify_responses"]] == [
        (0, 0), (0, 1), (1, 0),
    ]  # fmt: skip
    assert set(sent["verify_responses"][0]) == {
        "_ng_task_index", "_ng_rollout_index", "agent_ref", "reward", "response",
    }  # fmt: skip
    assert sent["verify_responses"][0]["response"] == {"usage": {"total_tokens": 7}}
    assert leftovers(tmp_path) == []


async def test_a_large_request_is_streamed_with_its_length(tmp_path: Path) -> None:
    lengths = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        lengths.append((request.content_length, len(body["verify_responses"])))
        return web.json_response({"key_metrics": {"x": 1}})

    files = write_run(tmp_path, [rollout(task, 0, note="x" * 500_000) for task in range(20)])
    async with asked(alpha=answer) as client:
        (metrics,) = await aggregate_run(files, client)
    assert metrics.key_metrics == {"x": 1}
    ((length, records),) = lengths
    assert length > 10_000_000
    assert records == 20


async def refused(_: web.Request) -> web.Response:
    return web.Response(status=500, text="no")


async def nonsense(_: web.Request) -> web.Response:
    return web.Response(text="[]")


@pytest.mark.parametrize("handler", [refused, nonsense])
async def test_an_agent_that_can_not_answer_loses_only_its_own_metrics(
    handler: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = write_run(tmp_path, [rollout(0, 0, "alpha"), rollout(1, 0, "beta")])
    async with asked(alpha=handler, beta=default_answer) as client:
        metrics = await aggregate_run(files, client)
    assert [each.agent for each in metrics] == ["beta"]
    assert "No metrics for alpha" in caplog.text
    details = json.loads((tmp_path / "out_aggregate_details.json").read_text())
    assert [entry["agent_ref"]["name"] for entry in details] == ["alpha", "beta"]


async def test_an_agent_that_is_not_running_loses_only_its_own_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = write_run(tmp_path, [rollout(0, 0, "gone"), rollout(1, 0, "beta")])
    async with asked(beta=default_answer) as client:
        metrics = await aggregate_run(files, client)
    assert [each.agent for each in metrics] == ["beta"]
    assert "No metrics for gone" in caplog.text


def test_rows_of_a_plan_count_whoever_wrote_them(tmp_path: Path) -> None:
    files = RunFiles.of(tmp_path / "rollouts.jsonl")
    ours = [{"_ng_task_index": i, "agent_ref": {"name": "a"}, "_ng_rollout_index": 0} for i in range(3)]
    files.plan.write_text("".join(json.dumps(row) + "\n" for row in ours))
    by_us = PlannedKeys.of([files.rollouts])
    others = [{"agent_ref": None, "_ng_task_index": 3.0, "_ng_rollout_index": 2}, {"_ng_task_index": "x"}, 7]
    with files.plan.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in others) + '\n{"torn')
    by_all = PlannedKeys.of([files.rollouts])
    assert by_us is not None
    assert by_all is not None
    assert by_us.keys_of("a").task.tolist() == by_all.keys_of("a").task.tolist() == [0, 1, 2]
    assert [column.tolist() for column in by_all.by_agent[None]] == [[3], [2]]


async def test_coverage_and_tool_use_lie_beside_the_metrics(tmp_path: Path) -> None:
    failures = [{**rollout(2, 0), "_ng_failure_class": "timeout"}, {**rollout(0, 0), "_ng_failure_class": "transient"}]
    files = write_run(tmp_path, [rollout(0, 0), rollout(1, 0)], plan=4, failures=failures)
    files.failures.write_text(files.failures.read_text() + '{"torn')
    (metrics,) = await aggregate_run(files, None)
    (details,) = json.loads((tmp_path / "out_aggregate_details.json").read_text())
    assert details["coverage"] == {
        "planned": 4, "completed": 2, "failed": {"timeout": 1}, "pending": 1, "completed_pct": 50.0,
    }  # fmt: skip
    assert details["avg_tool_calls"] == 1.0
    assert details["intervals"]["mean/reward"]["method"] == "wilson"
    assert metrics.report is not None
    text = metrics.report.text()
    assert text.startswith("alpha: 2 of 4 rollouts completed (50.0 %), 1 failed (timeout 1), 1 not run\n")
    assert "0  2  100.0 %  ####" in text
    assert "never  2  100.0 %" in text


async def test_an_agent_of_which_nothing_is_completed_still_has_its_coverage(tmp_path: Path) -> None:
    files = write_run(tmp_path, [rollout(0, 0, "other")], plan=2)
    await aggregate_run(files, None)
    alpha, other = json.loads((tmp_path / "out_aggregate_details.json").read_text())
    assert (alpha["rollouts"], alpha["coverage"]["planned"], alpha["coverage"]["completed"]) == (0, 2, 0)
    assert other["coverage"]["planned"] == 0


async def test_a_torn_line_is_told_and_the_rest_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = write_run(tmp_path, [rollout(0, 0)])
    with files.rollouts.open("a") as file:
        file.write('{"_ng_task_index": 1, "rew')
    with caplog.at_level(logging.WARNING):
        (metrics,) = await aggregate_run(files, None)
    assert metrics.key_metrics["mean/reward"] == 0.0
    assert f"{files.rollouts} line 2 does not count: not JSON" in caplog.text


async def test_the_details_and_the_screen_name_the_same_cost_with_failed_attempts_judges_and_cached_tokens(
    tmp_path: Path,
) -> None:
    def used(tokens: int, cached: int) -> dict[str, Any]:
        usage = {"input_tokens": tokens, "output_tokens": 0, "input_tokens_details": {"cached_tokens": cached}}
        judged = {"j": {"input_tokens": 100_000, "output_tokens": 0}, "free": {"input_tokens": 5, "output_tokens": 5}}
        return {"agent_ref": {"name": "a"}, "response": {"usage": usage}, "_ng_judge_usage": judged}

    files = RunFiles.of(tmp_path / "out.jsonl")
    done = [{"_ng_task_index": n, "_ng_rollout_index": 0, "reward": 1.0, **used(1_000_000, 500_000)} for n in range(2)]
    lost = {"_ng_task_index": 2, "_ng_rollout_index": 0, "_ng_failure_class": "x", **used(2_000_000, 0)}
    files.rollouts.write_text("".join(json.dumps(record) + "\n" for record in done) + '{"torn')
    files.failures.write_text(json.dumps(lost) + "\n")
    config = OmegaConf.create(
        {
            "m": {"responses_api_models": {"x": {"prices": {"input": 1.0, "output": 1.0, "cached_input": 0.5}}}},
            "j": {"responses_api_models": {"x": {"prices": {"input": 5.0, "output": 1.0}}}},
            "a": {"responses_api_agents": {"y": {"host": "127.0.0.1", "port": 9, "model_server": {"name": "m"}}}},
        }
    )
    client = GymClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=9), global_config_dict=config)
    await aggregate_run(files, client)
    await close_http_client()
    (entry,) = json.loads(files.details.read_text())
    spent = read_spending([files.rollouts], agents_of(client).prices)
    assert entry["cost"]["usd"] == pytest.approx(spent.usd) == pytest.approx(2 * 0.75 + 2.0 + 3 * 0.5)
    summary = Summary(files=files, planned=3, done_before=2, given_up_before={}, tally=Tally(), spent=spent)
    assert "5 USD" in summary.text()


class Plain(SimpleResourcesServer):
    async def verify(self, body: Any) -> Any: ...


class Computes(Plain):
    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return {"tasks": len(tasks)}


class Selects(Plain):
    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return agent_metrics


class Answers(Plain):
    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return AggregateMetrics()


class MyAgent(SimpleAgent):
    pass


def local(server_class: Any, **settings: Any) -> LocalServer:
    common = {"name": "me", "host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "domain": "other"}
    config_class: Any = server_class.model_fields["config"].annotation
    if not issubclass(config_class, BaseResourcesServerConfig):
        del common["domain"]
    head = BaseServerConfig(host="127.0.0.1", port=1)
    client = GymClient(head_server_config=head, global_config_dict=OmegaConf.create({})).for_server(server_class)
    server = server_class(config=config_class.model_validate({**common, **settings}), server_client=client)
    return LocalServer(build_app(server), label="me", base_url="http://127.0.0.1:1")


def agent(server_class: Any, resources: str) -> LocalServer:
    return local(
        server_class,
        resources_server={"type": "resources_servers", "name": resources},
        model_server={"type": "responses_api_models", "name": "policy_model"},
    )


@pytest.mark.parametrize(("server", "default"), [(Plain, True), (Computes, False), (Selects, False), (Answers, False)])
def test_a_server_with_a_hook_of_its_own_has_to_be_asked(server: Any, default: bool) -> None:
    assert has_default_metrics({"r": local(server)}, "r") is default


@pytest.mark.parametrize("agent_class", [SimpleAgent, MyAgent])
@pytest.mark.parametrize(("server", "default"), [(Plain, True), (Computes, False)])
def test_an_agent_that_hands_the_question_on_is_as_its_resources_server(
    agent_class: Any, server: Any, default: bool
) -> None:
    servers = {"a": agent(agent_class, "r"), "r": local(server)}
    assert has_default_metrics(servers, "a") is default


def test_of_servers_elsewhere_nothing_is_known() -> None:
    assert not has_default_metrics({"a": agent(SimpleAgent, "elsewhere")}, "a")
    assert not has_default_metrics({}, "a")
