"""All checkers report alike; ``ng_check_environment`` finds what is wrong on purpose and accepts what is shipped."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from nemo_gym.audit.inspection import FOLDER_CHECKS
from nemo_gym.audit.players import RandomPlayer, repeating, solutions
from nemo_gym.cli.parameters import ServerTemplate
from nemo_gym.servers.venvs import read_requirements, unmet

ROOT = Path(__file__).parents[2]
# These load heavy libraries or start processes; the others are played in a second.
SLOW = {"math_answers", "mcp_tools", "python_code", "reasoning_gym"}
SHIPPED = sorted({path.parents[1].name for path in ROOT.glob("resources_servers/*/data/example.jsonl")} - SLOW)
TEMPLATES = [name for name in get_args(ServerTemplate) if name != "blank"]

WRONG = """\
import time

from fastapi import FastAPI, Request
from pydantic import PrivateAttr

from nemo_gym.base_resources_server import *
from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.server_utils import SESSION_ID_KEY


class Task(BaseRunRequest):
    expected_answer: str


class Rollout(Task, BaseVerifyRequest):
    pass


class WrongServer(SimpleResourcesServer):
    config: BaseResourcesServerConfig
    _seen: dict[str, str] = PrivateAttr(default_factory=dict)
    _last: list[int] = PrivateAttr(default_factory=lambda: [0])

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/look_up")(self.look_up)
        return app

    async def look_up(self, request: Request, body: dict) -> dict:
        LOOK_UP

    async def seed_session(self, request: Request, body: Task) -> BaseSeedSessionResponse:
        SEED
        return BaseSeedSessionResponse()

    async def verify(self, request: Request, body: Rollout) -> BaseVerifyResponse:
        text = body.response.output_text
        reward = float(text == f"The answer is {body.expected_answer}.")
        VERIFY
        return BaseVerifyResponse(**dict(body), reward=reward)


if __name__ == "__main__":
    WrongServer.run_webserver()
"""


LOOK_UP = {
    "type": "function",
    "name": "look_up",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
}


def row(question: str, answer: Any, **more: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": question, **more}, "expected_answer": answer}


ROWS = [row("1 + 1?", "2", tools=[LOOK_UP]), row("2 + 3?", "5"), row("3 + 5?", "8")]


def write_environment(
    name: str,
    *,
    seed: str = "pass",
    verify: str = "pass",
    look_up: str = "return {'found': 1}",
    rows: list[dict[str, Any]],
) -> str:
    folder = Path("resources_servers") / name
    (folder / "data").mkdir(parents=True)
    (folder / "configs").mkdir()
    (folder / "app.py").write_text(WRONG.replace("SEED", seed).replace("VERIFY", verify).replace("LOOK_UP", look_up))
    (folder / "requirements.txt").touch()
    (folder / "data" / "example.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": name},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    config = {
        name: {"resources_servers": {name: {"entrypoint": "app.py", "domain": "other"}}},
        f"{name}_agent": {"responses_api_agents": {"simple_agent": agent}},
    }
    (folder / "configs" / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return f"+entrypoint={folder}"


def write_configuration(*, folder: str = "mine", **server: Any) -> str:
    write_folder()
    settings = {"entrypoint": "app.py", "domain": "other", **server}
    Path("gym.yaml").write_text(json.dumps({"mine": {"resources_servers": {folder: settings}}}))
    return "+config_paths=[gym.yaml]"


def write_folder(*, code: str = "", requirements: bool = True) -> str:
    folder = Path("resources_servers/mine")
    (folder / "tests").mkdir(parents=True)
    blank = WRONG.replace("SEED", "pass").replace("VERIFY", "pass").replace("LOOK_UP", "pass")
    (folder / "app.py").write_text(code or blank)
    (folder / "tests" / "test_mine.py").write_text(f"def test_nothing():\n    {code or 'pass'}\n")
    if requirements:
        (folder / "requirements.txt").touch()
    return f"+entrypoint={folder}"


NO_DATA = [{"name": "d", "type": "example", "jsonl_fpath": "nowhere.jsonl"}]
REPORTS = [
    ("ng_validate", write_configuration, []),
    ("ng_validate", lambda: write_configuration(datasets=NO_DATA), ["warning"]),
    ("ng_validate", lambda: write_configuration(folder="yours", datasets=NO_DATA), ["error", "warning"]),
    ("ng_check_folder", write_folder, []),
    ("ng_check_folder", lambda: write_folder(requirements=False), ["warning"]),
    ("ng_check_folder", lambda: write_folder(code="import nothing_like_it"), ["error", "error"]),
    ("ng_check_environment", lambda: write_environment("report_0", rows=ROWS), []),
    ("ng_check_environment", lambda: write_environment("report_1", verify="reward = 0.0", rows=ROWS), ["warning"]),
    ("ng_check_environment", lambda: write_environment("report_2", verify="reward *= 2", rows=ROWS), ["error"]),
    ("ng_test", write_folder, []),
    ("ng_test", lambda: write_folder(code="assert False"), ["error"]),
    ("ng_test +should_validate_data=true", write_folder, ["error", "error", "error"]),
]


@pytest.mark.parametrize(("command", "subject", "severities"), REPORTS)
def test_all_checkers_report_alike_and_only_errors_fail(run, command, subject, severities):
    arguments = [*command.split(), subject()]
    as_json, as_text = run(*arguments, "+json=true"), run(*arguments)
    found = json.loads(as_json.out)
    report = found[0] if isinstance(found, list) else found
    # How long verification blocks others depends on how busy the machine is.
    findings = [finding for finding in report["findings"] if finding["place"] != "blocking"]
    assert [finding["severity"] for finding in findings] == severities
    assert as_json.code == as_text.code == ("error" in severities)
    assert report["valid"] == ("error" not in severities)
    for finding in findings:
        assert list(finding) == ["severity", "place", "message", "hint"]
        hint = f"; {finding['hint']}" if finding["hint"] else ""
        assert f"  {finding['severity']}: {finding['place']}: {finding['message']}{hint}\n" in as_text.out


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_that_is_shipped_must_be_fixed(run, name):
    if missing := unmet(read_requirements(ROOT / "resources_servers" / name)):
        pytest.skip(f"needs packages that are not installed: {missing}")
    ran = run("ng_check_environment", f"+entrypoint=resources_servers/{name}", "+json=true")
    [report] = json.loads(ran.out)
    assert (ran.code, [one for one in report["findings"] if one["severity"] == "error"]) == (0, [])
    assert report["rows"] == 5
    # Rollouts of code repair would hold source of the packages, which is not copied into this repository.
    is_recorded = (ROOT / "resources_servers" / name / "data" / "example_rollouts.jsonl").is_file()
    expected = {"silent", "random", *(["recorded"] if is_recorded else [])}
    assert {player["player"] for player in report["players"]} >= expected
    assert is_recorded or name == "code_repair"


def test_every_template_is_whole(run, mock_model):
    for template in TEMPLATES:
        folder = f"resources_servers/from_{template}"
        assert run("ng", "env", "init", "--resources-server", f"from_{template}", "--template", template).code == 0
        ran = run("ng_check_environment", f"+entrypoint={folder}", "+json=true")
        [report] = json.loads(ran.out)
        assert (ran.code, report["rows"]) == (0, 5), ran.err
        # What solves the rows of these two is not in the rows; their own tests show that they can be solved.
        expected = ["no variance"] if template in ("stateful", "sandboxed") else []
        assert [finding["place"] for finding in report["findings"]] == expected
        assert run("ng_validate", f"+config_paths=[{folder}/configs/from_{template}.yaml]").code == 0
        readme = Path(folder, "README.md").read_text()
        assert "$" not in readme
        assert f"ng_test +entrypoint={folder}" in readme
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "asyncio_mode=auto",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-p", "pytest_asyncio.plugin", "-W", "ignore::pytest.PytestDeprecationWarning", "resources_servers"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(ROOT)])}
    tested = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    for template in ("stateful", "multi_turn"):
        collected = run(
            "ng_collect_rollouts",
            f"+config_paths=[resources_servers/from_{template}/configs/from_{template}.yaml,"
            "responses_api_models/openai_model/configs/openai_model.yaml]",
            f"+policy_base_url={mock_model.base_url}",
            "+policy_api_key=none",
            "+policy_model_name=mock",
            f"+agent_name=from_{template}_simple_agent",
            f"+input_jsonl_fpath=resources_servers/from_{template}/data/example.jsonl",
            f"+output_jsonl_fpath=results/{template}.jsonl",
        )
        assert collected.code == 0, collected.err
        assert len(Path(f"results/{template}.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("name", "parts", "place", "says"),
    [
        ("too_much", {"verify": "reward *= 10"}, "error: rewards", "3 of 12 are not numbers from 0 to 1: 10.0"),
        ("not_a_number", {"verify": "reward = float('inf')"}, "error: rewards", "9 of 9"),
        ("constant", {"verify": "reward = 1.0"}, "warning: no variance", "all 12 rollouts got 1.0"),
        ("generous", {"verify": "reward = max(reward, 0.5)"}, "warning: silent player", "3 of 3"),
        (
            "leaking",
            {"verify": "self._last[0] += 1; reward = reward if self._last[0] < 20 else 0.0"},
            "error: sessions",
            "state leaks",
        ),
        ("crashing", {"verify": "1 / len(text)"}, "error: verification", "ZeroDivisionError"),
        ("blocking", {"verify": "time.sleep(0.05)"}, "warning: blocking", "use a thread or a process"),
        ("keeping", {"seed": "self._seen[request.session[SESSION_ID_KEY]] = ''"}, "warning: retention", "_seen grows"),
        (
            "loose",
            {"verify": "reward = float(body.expected_answer in text)"},
            "warning: ambiguous answers",
            "rows 1, 2, 3",
        ),
        (
            "one_key",
            {
                "seed": "self._seen['it'] = body.expected_answer",
                "verify": "reward *= body.expected_answer == self._seen['it']",
            },
            "error: sessions",
            "side by side",
        ),
        ("raising", {"look_up": "raise KeyError('n')"}, "error: tools", "look_up fails in all 4 calls: KeyError"),
        ("talkative", {"verify": "reward = max(reward, 0.3 * (len(text) > 100))"}, "warning: talking player", "3 of 3"),
    ],
)
def test_what_is_wrong_with_an_environment_is_found(run, name, parts, place, says):
    ran = run("ng_check_environment", write_environment(f"check_{name}", rows=ROWS, **parts))
    lines = [line.strip() for line in ran.out.splitlines() if line.strip().startswith(place)]
    assert lines, ran.out
    assert says in lines[0]
    assert ran.code == place.startswith("error")


def test_rows_that_are_refused_and_tools_that_are_not_there_are_errors(run):
    tool = {"type": "function", "name": "look_down", "parameters": {"type": "object", "properties": {}}}
    refused = {"responses_create_params": {"input": "?"}}
    rows = [row("1 + 1?", "2", tools=[tool]), refused, row("1 + 1?", "2"), row("1 + 1?", "3")]
    ran = run("ng_check_environment", write_environment("check_rows", rows=rows))
    assert ran.code == 1
    assert "error: rows: 1 of 4 are refused by /seed_session: row 2:" in ran.out
    assert "error: tools: rows offer tools that are not routes of the server: look_down" in ran.out
    assert "error: ambiguous rows: rows 3, 4 ask the same but expect different things" in ran.out


def test_a_folder_without_configuration_is_explained(run):
    folder = Path("resources_servers/check_bare")
    (folder / "data").mkdir(parents=True)
    (folder / "requirements.txt").touch()
    (folder / "data" / "example.jsonl").write_text("{}\n")
    ran = run("ng_check_environment", f"+entrypoint={folder}")
    assert ran.code == 1
    assert "there is no configuration" in ran.err


def test_an_environment_whose_packages_are_missing_is_an_error(run):
    entrypoint = write_environment("check_needy", rows=ROWS)
    Path("resources_servers/check_needy/requirements.txt").write_text("a-package-that-nobody-has==1.0\n")
    ran = run("ng_check_environment", entrypoint)
    assert ran.code == 1
    assert "error: requirements: needs a-package-that-nobody-has==1.0; pip install 'a-package" in ran.out


def test_configurations_of_other_commands_are_refused_with_the_way_to_type_it(run):
    ran = run("ng_check_environment", "+config_paths=[resources_servers/calculator/configs/calculator.yaml]")
    assert ran.code == 2
    assert "ng_check_environment resources_servers/<name>" in ran.err


def test_equal_rows_are_a_warning(run):
    rows = [row("a", "1"), row("b", "2"), {**row("a", "1"), "id": 7}]
    ran = run("ng_check_environment", write_environment("check_equal", rows=rows))
    assert "warning: duplicate rows: rows 1, 3 are the same" in ran.out


def test_random_players_repeat_themselves_and_follow_the_schema():
    parameters = {
        "type": "object",
        "properties": {
            "size": {"type": "integer", "minimum": 3, "maximum": 4},
            "colour": {"enum": ["red", "blue"]},
            "tags": {"type": "array", "items": {"type": ["string", "null"]}},
            "either": {"anyOf": [{"type": "boolean"}, {"type": "number"}]},
        },
    }
    request = {"tools": [{"type": "function", "name": "paint", "parameters": parameters}]}
    [item] = RandomPlayer("a").answer(0, request)
    assert RandomPlayer("a").answer(0, request) == [item]
    arguments = json.loads(item["arguments"])
    assert arguments["size"] in (3, 4)
    assert arguments["colour"] in ("red", "blue")
    assert RandomPlayer("a").answer(2, request)[0]["type"] == "message"


def test_a_recorded_rollout_is_repeated_turn_by_turn():
    said = {"type": "message", "role": "assistant", "content": []}
    called = {"type": "function_call", "name": "add", "arguments": "{}", "call_id": "c"}
    answered = {"type": "function_call_output", "call_id": "c", "output": "1"}
    player = repeating([said, called, answered, called, answered, {"role": "user", "content": "Go on."}, said])
    assert player.turns == ((said, called), (called,), (said,))


def test_solutions_are_taken_from_the_fields_that_hold_answers():
    calls = [{"name": "add", "arguments": '{"a": 1}'}, {"name": "stop", "arguments": {}}]
    [player, *_] = solutions({"ground_truth": calls, "other": "no"})
    assert [item["name"] for turn in player.turns for item in turn] == ["add", "stop"]
    assert player.answer(2, {})[0]["content"][0]["text"] == "Done."
    assert not solutions({"question": "?", "expected_answer": None})


def test_a_folder_of_a_newer_release_is_told_which_release_has_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(
        code="from nemo_gym.rollout_health import run_health_checks\n"
        "from nemo_gym.base_responses_api_model import start_model_execution\n"
        "from nemo_gym.sandbox import AsyncSandboxCompose\n"
    )
    found = [str(finding.message) for check in FOLDER_CHECKS for finding in check(tmp_path / "resources_servers/mine")]
    assert "there is no module nemo_gym.rollout_health, which NeMo Gym has since 0.7.0" in found
    assert "nemo_gym.sandbox has no 'AsyncSandboxCompose', which NeMo Gym has since 0.7.0" in found
    assert not any("start_model_execution" in message for message in found)
