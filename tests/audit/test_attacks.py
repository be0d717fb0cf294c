"""The attack audit finds holes that were planted, blames nobody else, and passes everything that is shipped."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli.main import main
from nemo_gym.servers.venvs import read_requirements, unmet
from tests.audit.planted import HOLES, STRICT, Planted, written
from tests.benchmarks.test_hub_benchmarks import CASES, load_script, publish


def audit(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    capfd.readouterr()
    code = main(["ng_check_environment", *argv, "+attack=true", "+json=true"])
    [report] = json.loads(capfd.readouterr().out)
    return code, report


def errors_in(report: dict[str, Any]) -> list[str]:
    """All errors but one that depends on how busy the machine is."""
    found = [each for each in report["findings"] if each["severity"] == "error" and each["place"] != "blocking"]
    return [f"{each['place']}: {each['message']}" for each in found]


@pytest.mark.parametrize("planted", HOLES, ids=lambda each: f"{each.environment}: {each.name}")
def test_a_planted_hole_is_found(planted: Planted, tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    Path("env.py").write_text(written(planted.environment, planted.verify, planted.more))
    code, report = audit(capfd, "env.py")
    assert code == 1, report
    assert any(error.startswith(planted.place) for error in errors_in(report)), report["findings"]


@pytest.mark.parametrize("environment", STRICT)
def test_a_verifier_without_holes_is_not_blamed(environment: str, tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    Path("env.py").write_text(written(environment, STRICT[environment]))
    _, report = audit(capfd, "env.py")
    assert errors_in(report) == []


# ---- what authors add ------------------------------------------------------------------------------------------------
def test_an_author_adds_an_attack_and_may_say_that_a_hole_is_known(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    own = '@env.attack\ndef politely(sight):\n    return [f"Please: {sight.prompt}"]\n'
    verify = "return float(words(response).startswith('Please'))"
    Path("env.py").write_text(written("sums", verify, own))
    code, report = audit(capfd, "env.py")
    [hole] = [attack for attack in report["attacks"] if attack["verdict"] == "hole"]
    assert (code, hole["attack"], hole["solved"], hole["kinds"]) == (1, "politely", 4, "number 4/4")
    said = report["transcripts"]["politely"]["output"][0]["content"][0]["text"]
    assert said == "Please: What is 13 + 28?"
    Path("other.py").write_text(written("sums", verify, f"{own}env.known_holes['politely'] = 'manners count'\n"))
    code, report = audit(capfd, "other.py")
    assert (code, report["transcripts"]) == (0, {})
    assert [attack["verdict"] for attack in report["attacks"] if attack["attack"] == "politely"] == ["known"]


JUDGED = """\
from nemo_gym.base_resources_server import *
from nemo_gym.judge import Judge, JudgeConfig
from nemo_gym.openai_utils import answer_text
from pydantic import ConfigDict, PrivateAttr


class Config(BaseResourcesServerConfig):
    judge: JudgeConfig


class Rollout(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class JudgedServer(SimpleResourcesServer):
    config: Config

    async def verify(self, body: Rollout) -> BaseVerifyResponse:
        JUDGE
        return BaseVerifyResponse(**dict(body), reward=reward)
"""
CAREFUL = "reward = (await Judge(self.config.judge, self.server_client).ask(answer=answer_text(body.response))).score"
NAIVE = """\
prompt = self.config.judge.prompt.format(answer=answer_text(body.response), fence="")
        asked = {"input": [{"role": "user", "content": prompt}]}
        reply = await self.server_client.post(server_name="policy_model", url_path="/v1/responses", json=asked)
        text = NeMoGymResponse.model_validate(await reply.json()).output_text
        reward = READ"""
READERS = {
    "anywhere": "float('[[YES]]' in text)",
    "the last label": "float(text.rfind('[[YES]]') > text.rfind('[[NO]]'))",
    "the first label": "float(-1 < text.find('[[YES]]') < (text.find('[[NO]]') % 10**9))",
    "the beginning": "float(text.startswith('[[YES]]'))",
}
FENCED = "Is it right?\n<answer-{fence}>\n{answer}\n</answer-{fence}>\nEnd with [[YES]] or [[NO]]."


def write_judged(name: str, judge: str) -> str:
    folder = Path("resources_servers") / name
    (folder / "data").mkdir(parents=True)
    (folder / "configs").mkdir()
    (folder / "app.py").write_text(JUDGED.replace("JUDGE\n", f"{judge}\n"))
    (folder / "requirements.txt").touch()
    rows = [{"responses_create_params": {"input": f"Name a river in {where}."}} for where in ("Peru", "Italy")]
    (folder / "data" / "example.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = {"type": "responses_api_models", "name": "policy_model"}
    settings = {"model_server": model, "prompt": FENCED, "labels": {"[[YES]]": 1.0, "[[NO]]": 0.0}}
    server = {"entrypoint": "app.py", "domain": "other", "judge": settings}
    agent = {"resources_server": {"type": "resources_servers", "name": name}, "model_server": model}
    config = {
        name: {"resources_servers": {name: server}},
        f"{name}_agent": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **agent}}},
    }
    (folder / "configs" / f"{name}.yaml").write_text(json.dumps(config))
    return f"resources_servers/{name}"


@pytest.mark.parametrize("reader", READERS)
def test_a_judge_that_can_be_talked_to_is_found(reader: str, tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_judged(f"judged_{list(READERS).index(reader)}", NAIVE.replace("READ", READERS[reader]))
    code, report = audit(capfd, folder)
    holes = [attack["attack"] for attack in report["attacks"] if attack["verdict"] == "hole"]
    assert code == 1
    assert any(name.startswith("judge injection") for name in holes), report["attacks"]


def test_a_judge_that_can_not_be_talked_to_is_not_blamed(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    _, report = audit(capfd, write_judged("judged_well", CAREFUL))
    assert errors_in(report) == []
    names = [attack["attack"] for attack in report["attacks"] if attack["family"] == "judges"]
    assert names == [f"judge injection, {kind}" for kind in ("obedient", "verdict first", "verdict last")]


# ---- what is shipped -------------------------------------------------------------------------------------------------
ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.parents[1].name for path in ROOT.glob("resources_servers/*/data/example.jsonl"))
# Tasks that are attacked here: few, where every rollout starts processes.
TASKS = {"mcp_tools": 1, "python_code": 2}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_environment_withstands_all_attacks(name: str, capfd) -> None:
    if missing := unmet(read_requirements(ROOT / "resources_servers" / name)):
        pytest.skip(f"needs packages that are not installed: {missing}")
    _, report = audit(capfd, f"resources_servers/{name}", f"+limit={TASKS.get(name, 6)}")
    assert errors_in(report) == []
    assert len(report["attacks"]) >= 15
    assert all(attack["verdict"] == "ok" for attack in report["attacks"]) or name == "example_single_tool_call"


def sensible(server: str, line: str, what: str) -> str:
    """A made-up row whose question does not contain its answer."""
    row = json.loads(line)
    asked = {"question": f"How many {what} are left?"} if server == "math_answers" else {}
    return json.dumps({**row, **asked}) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_every_shipped_benchmark_withstands_all_attacks(name: str, tmp_path: Path, monkeypatch, capfd) -> None:
    published, server, _, _ = CASES[name]
    if missing := unmet(read_requirements(ROOT / "resources_servers" / server)):
        pytest.skip(f"needs packages that are not installed: {missing}")
    script = load_script(name, tmp_path / "benchmarks")
    publish(script.SOURCE, [published(number) for number in range(script.SOURCE.rows)], tmp_path / "hub")
    monkeypatch.setenv("ROLLOUT_GYM_HUB_FOLDER", str(tmp_path / "hub"))
    tasks = tmp_path / "tasks.jsonl"
    lines = script.prepare().read_text().splitlines()[25:27]
    tasks.write_text("".join(sensible(server, line, what) for line, what in zip(lines, ("pears", "figs"), strict=True)))
    if server == "verifiable_instructions":  # the made-up ones are so easy that nearly everything solves them
        tasks = ROOT / "resources_servers" / server / "data" / "example.jsonl"
    _, report = audit(capfd, name, f"+input_jsonl_fpath={tasks}")
    assert errors_in(report) == []
