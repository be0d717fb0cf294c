"""What a person gets who makes a mistake, or whose model, tools or servers fail: words that help, and nothing lost.

Each test starts with one rollout already collected. Whatever goes wrong then, that rollout stays on disk byte for byte,
and the API key appears neither on the screen nor in any file.
"""

import http.server
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nemo_gym.cli.main import main
from nemo_gym.global_config import reset_global_config
from nemo_gym.rollouts.store.outcome import OUTSIDE

if TYPE_CHECKING:
    from conftest import MockModel, MockProcess

KEY = "sk-never-show-this-0123456789"
EXAMPLE = "resources_servers/example_single_tool_call"
MODEL_CONFIG = "responses_api_models/openai_model/configs/openai_model.yaml"
CONFIG_PATHS = f"+config_paths=[{EXAMPLE}/configs/example_single_tool_call.yaml,{MODEL_CONFIG}]"
AGENT = "+agent_name=example_single_tool_call_simple_agent"
INPUT = f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl"
OUTPUT = "+output_jsonl_fpath=results/out.jsonl"
COLLECT = ("ng_collect_rollouts", CONFIG_PATHS, AGENT, INPUT, OUTPUT)
GO_ON = ("+limit=2", "+resume_from_cache=true", "+resume_mode=extend")
MODEL = "++policy_model.responses_api_models.openai_model"
ONCE = f"{MODEL}.max_retries=0"
SERVER_TYPES = ("resources_servers.", "responses_api_agents.", "responses_api_models.")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Desk:
    """A folder in which somebody has collected one rollout and now types the next command."""

    folder: Path
    screen: pytest.CaptureFixture[str]

    def type(self, *command: str) -> Ran:
        self.screen.readouterr()
        code = main(command)
        reset_global_config()
        out, err = self.screen.readouterr()
        assert KEY not in out + err
        return Ran(code, out, err)

    @property
    def collected(self) -> bytes:
        return (self.folder / "results" / "out.jsonl").read_bytes()

    def rows(self) -> list[dict]:
        return [json.loads(line) for line in self.collected.splitlines()]

    def failures(self) -> list[dict]:
        lines = (self.folder / "results" / "out_failures.jsonl").read_bytes().splitlines()
        return [json.loads(line) for line in lines]

    def tool_output(self) -> str:
        """What the model was told about its tool call in the rollout that was collected last."""
        items = self.rows()[-1]["response"]["output"]
        return next(item["output"] for item in items if item["type"] == "function_call_output")


@pytest.fixture
def model(mock_model: "MockModel") -> Iterator["MockModel"]:
    yield mock_model
    mock_model.set(faults="none:0")  # an empty value would change nothing


@pytest.fixture(scope="module")
def first_rollout(_mock_process: "MockProcess", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one rollout, collected once for all tests."""
    folder = tmp_path_factory.mktemp("collected")
    _mock_process.model.reset()
    write_env(folder, _mock_process.model.base_url)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*COLLECT, "+limit=1"]) == 0
    reset_global_config()
    return folder


@pytest.fixture
def desk(
    first_rollout: Path,
    model: "MockModel",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Desk]:
    shutil.copytree(first_rollout, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "1")
    modules = set(sys.modules)
    here = Desk(tmp_path, capfd)
    before = here.collected
    yield here
    assert here.collected.startswith(before)
    for path in tmp_path.rglob("*"):
        assert path.name == "env.yaml" or path.is_dir() or KEY.encode() not in path.read_bytes(), path
    for name in set(sys.modules) - modules:
        if name.startswith(SERVER_TYPES) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def write_env(folder: Path, base_url: str) -> None:
    text = f"policy_base_url: {base_url}\npolicy_api_key: {KEY}\npolicy_model_name: mock-model\n"
    (folder / "env.yaml").write_text(text)


def expect(ran: Ran, code: int, *lines: str) -> None:
    """The command ended with this code and said these things, without a traceback."""
    assert ran.code == code, ran.err
    for line in lines:
        assert line in ran.err
    assert "Traceback" not in ran.err


# ---- configuration and files -----------------------------------------------------------------------------------------
def test_a_task_file_that_does_not_exist(desk: Desk) -> None:
    ran = desk.type("ng_collect_rollouts", CONFIG_PATHS, AGENT, "+input_jsonl_fpath=tasks.jsonl", OUTPUT)
    expect(ran, 1, "error: the input file 'tasks.jsonl' does not exist", "hint: correct +input_jsonl_fpath=")


def test_a_task_file_with_a_broken_line(desk: Desk) -> None:
    Path("tasks.jsonl").write_text('{"responses_create_params": {"input": "a"}}\n{"responses_cre\n')
    ran = desk.type("ng_collect_rollouts", CONFIG_PATHS, AGENT, "+input_jsonl_fpath=tasks.jsonl", OUTPUT)
    expect(ran, 1, "tasks.jsonl", "line 2", "hint: each line has to be one JSON object")


def test_a_configuration_file_that_does_not_exist(desk: Desk) -> None:
    misspelt = CONFIG_PATHS.replace("call.yaml", "cal.yaml")
    ran = desk.type("ng_collect_rollouts", misspelt, AGENT, INPUT, OUTPUT)
    expect(
        ran,
        1,
        f"error: command line: config file '{EXAMPLE}/configs/example_single_tool_cal.yaml' does not exist. Looked for",
        f"hint: did you mean {EXAMPLE}/configs/example_single_tool_call.yaml?",
    )
    ran = desk.type("ng_run", "+config_paths=[nowhere.yaml]")
    expect(ran, 1, "config file 'nowhere.yaml' does not exist", "hint: relative paths start in the current directory")


def test_malformed_yaml_is_shown_with_line_and_column(desk: Desk) -> None:
    Path("mine.yaml").write_text("policy_model:\n  a: 1\n b: 2\n")
    ran = desk.type("ng_collect_rollouts", "+config_paths=[mine.yaml]", AGENT, INPUT, OUTPUT)
    expect(ran, 1, "error: mine.yaml:3:2: malformed YAML", "hint: correct that line")


def test_values_that_nobody_has_set(desk: Desk) -> None:
    Path("env.yaml").unlink()
    ran = desk.type(*COLLECT)
    expect(
        ran,
        1,
        f"error: {MODEL_CONFIG}:5: 'policy_model.responses_api_models.openai_model.openai_base_url' needs",
        "hint: put these into env.yaml, or pass each of them as '+<key>=<value>':\n  policy_base_url: <value>\n",
    )


def test_a_model_that_no_file_defines(desk: Desk) -> None:
    ran = desk.type("ng_run", f"+config_paths=[{EXAMPLE}/configs/example_single_tool_call.yaml]")
    expect(ran, 1, "responses_api_models/'policy_model' is not defined", "hint: correct the name, or add the file")


def test_an_agent_that_does_not_exist(desk: Desk) -> None:
    ran = desk.type(
        "ng_collect_rollouts", CONFIG_PATHS, AGENT.replace("agent_name=e", "agent_name=an_e"), INPUT, OUTPUT
    )
    expect(
        ran,
        1,
        "error: the plan needs agent 'an_example_single_tool_call_simple_agent', but no such server is running",
        "hint: Did you mean: 'example_single_tool_call_simple_agent'?",
    )


def test_tasks_without_an_agent(desk: Desk) -> None:
    (desk.folder / "second.yaml").write_text(
        "second_agent:\n  responses_api_agents:\n    simple_agent:\n      entrypoint: app.py\n"
        "      resources_server: {type: resources_servers, name: example_single_tool_call}\n"
        "      model_server: {type: responses_api_models, name: policy_model}\n"
    )
    two = CONFIG_PATHS.replace("]", ",second.yaml]")
    ran = desk.type("ng_collect_rollouts", two, INPUT, OUTPUT)
    expect(ran, 1, "rows [0, 1, 2, 3, 4] (counted from 0) name no agent", "hint: give +agent_name=…")


def test_tasks_without_a_request(desk: Desk) -> None:
    (desk.folder / "tasks.jsonl").write_text('{"question": "?"}\n')
    ran = desk.type("ng_collect_rollouts", CONFIG_PATHS, AGENT, "+input_jsonl_fpath=tasks.jsonl", OUTPUT)
    expect(ran, 1, "rows [0] (counted from 0) have no responses_create_params object", "hint: each row needs", "prompt")


# ---- what was typed --------------------------------------------------------------------------------------------------
def test_a_parameter_that_does_not_exist(desk: Desk) -> None:
    ran = desk.type(*COLLECT, "+num_repeat=2")
    expect(ran, 2, "error: command line: unknown parameter 'num_repeat'. Did you mean: 'num_repeats'")


def test_a_parameter_without_its_plus(desk: Desk) -> None:
    expect(desk.type(*COLLECT, "limit=2"), 2, "'limit=<value>' has nothing to override", "hint: to set it, use '+limit")


def test_a_flag_that_does_not_exist(desk: Desk) -> None:
    expect(desk.type("ng", "eval", "run", "--limt", "2"), 2, "error: unknown flag --limt", "Did you mean: '--limit'")


@pytest.mark.parametrize("command", [["colect_rollouts"], ["eval", "rum"]], ids=" ".join)
def test_a_misspelt_command(desk: Desk, command: list[str]) -> None:
    """As a process of its own: what the shell sees."""
    done = subprocess.run(
        [Path(sys.executable).parent / "ng", *command], capture_output=True, text=True, check=False, timeout=60
    )
    meant = {"colect_rollouts": "'collect_rollouts'", "eval": "'run'"}[command[0]]
    expect(Ran(done.returncode, done.stdout, done.stderr), 2, "error: unknown command", f"hint: Did you mean: {meant}")


# ---- servers ---------------------------------------------------------------------------------------------------------
def test_no_head_server(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    head = f"+head_server={{host: 127.0.0.1, port: {port}}}"
    ran = desk.type("ng_collect_rollouts", AGENT, INPUT, OUTPUT, head)
    expect(
        ran,
        1,
        f"error: Could not connect to the head server at http://127.0.0.1:{port}",
        "hint: start the servers with ng_run in another terminal, or give +config_paths=[…] to host them here",
    )
    ran = desk.type("ng_status", head)
    assert ran.out == "No NeMo Gym servers found running.\n"
    expect(ran, 0, f"warning: no head server replies at 127.0.0.1:{port}")


@pytest.mark.parametrize("owner", ["head server", "policy_model"])
def test_a_port_that_is_in_use(desk: Desk, owner: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        taken, free = server.getsockname()[1], other.getsockname()[1]
        other.close()
        head = taken if owner == "head server" else free
        mine = [] if owner == "head server" else [f"{MODEL}.port={taken}"]
        ran = desk.type("ng_run", CONFIG_PATHS, f"+head_server={{host: 127.0.0.1, port: {head}}}", *mine)
    expect(
        ran,
        1,
        f"error: {owner}: can't listen on 127.0.0.1:{taken} (Address already in use)",
        "hint: another program (perhaps another ng_run) uses that address: stop it, or change ",
    )


ENVIRONMENT = """
from fastapi import FastAPI

from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer


class Mine(SimpleResourcesServer):
    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        {setup}
        return app

    async def get_weather(self, body: dict) -> dict:
        {tool}

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        {verify}
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


if __name__ == "__main__":
    Mine.run_webserver()
"""


def write_environment(
    name: str,
    code: str | None = None,
    *,
    setup: str = 'app.post("/get_weather")(self.get_weather)',
    tool: str = "return {}",
    verify: str = "",
) -> tuple[str, ...]:
    """Write a server folder and put it in place of the example; return the arguments that collect with it."""
    folder = Path("resources_servers") / name
    folder.mkdir(parents=True)
    (folder / "requirements.txt").touch()
    (folder / "app.py").write_text(code or ENVIRONMENT.format(setup=setup, tool=tool, verify=verify))
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "mine"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    config = {
        "mine": {"resources_servers": {name: {"entrypoint": "app.py", "domain": "other"}}},
        AGENT.partition("=")[2]: {"responses_api_agents": {"simple_agent": agent}},
    }
    Path("mine.yaml").write_text(json.dumps(config))
    return f"+config_paths=[mine.yaml,{MODEL_CONFIG}]", AGENT, INPUT, OUTPUT


@pytest.mark.parametrize(
    ("code", "place", "reason", "hint"),
    [
        (
            "import a_package_that_nobody_has\n",
            "/app.py:1",
            "ModuleNotFoundError: No module named 'a_package_that_nobody_has'",
            "hint: install the package with 'a_package_that_nobody_has', or list it in ",
        ),
        ("def verify(:\n", "", "SyntaxError: invalid syntax (app.py, line 1)", "hint: the traceback is shown with"),
        ("TABLE = {}['missing']\n", "/app.py:1", "KeyError: 'missing'", "hint: the traceback is shown with"),
    ],
    ids=["missing package", "syntax", "exception"],
)
@pytest.mark.parametrize("command", ["ng_run", "ng_collect_rollouts"])
def test_a_server_whose_module_can_not_be_imported(
    desk: Desk, command: str, code: str, place: str, reason: str, hint: str
) -> None:
    config, agent, *files = write_environment("unimportable", code)
    ran = desk.type(command, config, *([] if command == "ng_run" else [agent, *files]))
    folder = desk.folder / "resources_servers" / "unimportable"
    expect(ran, 1, f"error: mine cannot be imported: {folder}{place}: {reason}", hint)


def test_a_server_process_whose_module_can_not_be_imported(desk: Desk) -> None:
    config, agent, *files = write_environment("unimportable", "import a_package_that_nobody_has\n")
    apart = "++mine.resources_servers.unimportable.isolation=process"
    ran = desk.type("ng_collect_rollouts", config, agent, *files, apart)
    assert ran.code == 1
    assert "error: Process `mine` finished unexpectedly with exit code 1" in ran.err
    assert "ModuleNotFoundError: No module named 'a_package_that_nobody_has'" in ran.err
    assert "hint: all servers were stopped; what was saved before is intact; correct the cause" in ran.err


def test_a_setting_that_does_not_fit_its_server(desk: Desk) -> None:
    ran = desk.type(*COLLECT, f"{MODEL}.request_timeout_s=soon", f"{MODEL}.openai_api_key=[{KEY}]")
    expect(
        ran,
        1,
        "error: policy_model: settings do not fit",
        "  openai_api_key: Input should be a valid string",
        "  request_timeout_s: Input should be a valid number",
        "hint: correct them in the YAML, or on the command line: ++policy_model.",
    )


# ---- models ----------------------------------------------------------------------------------------------------------
class Indiscreet(http.server.BaseHTTPRequestHandler):
    """An endpoint that refuses everything, with the status in its path, and repeats the key it was given."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        error = {"error": {"message": f"no, {self.headers['authorization']}", "type": "some_error"}}
        body = json.dumps(error).encode()
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def indiscreet() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Indiscreet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def fails_and_recovers(desk: Desk, model: "MockModel", monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """One rollout is there and the next one fails; when the cause is gone it is run, and the first one is as it was."""

    def check(kind: str, *words: str, overrides: tuple[str, ...] = ()) -> None:
        before = desk.collected
        ran = desk.type(*COLLECT, *GO_ON, ONCE, "+patience_s=0", *overrides)
        how = "held up by the servers or the model" if kind in OUTSIDE else "failed"
        expect(ran, 3, f"\n{kind} ", f"1 of 2 rollouts completed (1 {how})", "add: +resume_from_cache=true", *words)
        assert desk.collected == before
        (failure,) = desk.failures()
        assert (failure["_ng_failure_class"], failure["_ng_task_index"]) == (kind, 1)
        assert "reward" not in failure
        assert all(word in failure["error_message"] for word in words)

        model.set(faults="none:0")
        monkeypatch.delenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS")
        expect(desk.type(*COLLECT, *GO_ON), 0, "2 of 2 rollouts completed")
        assert desk.collected.startswith(before)
        assert [row["_ng_task_index"] for row in desk.rows()] == [0, 1]

    return check


def test_a_model_endpoint_that_refuses_connections(fails_and_recovers: Callable[..., None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    fails_and_recovers(
        "unreachable",
        f"model mock-model at {url}: cannot connect: Connection refused",
        "check that the endpoint is up and that its base URL is right",
        overrides=(f"++policy_base_url={url}",),
    )


@pytest.mark.parametrize(
    ("status", "kind", "hint"),
    [
        (401, "auth", "check the API key"),
        (403, "auth", "check what the API key, its account and its region may use"),
        (404, "unreachable", "check the base URL and the model's name"),
        (429, "rate_limited", "send fewer requests: lower max_concurrent_requests or num_samples_in_parallel"),
        (500, "model_error", "the endpoint itself failed; its log says more"),
    ],
)
def test_a_model_endpoint_that_answers_with_an_error_status(
    fails_and_recovers: Callable[..., None], indiscreet: str, status: int, kind: str, hint: str
) -> None:
    url = f"{indiscreet}/{status}/v1"
    words = f"model mock-model at {url}: status {status}: no, Bearer ****"
    fails_and_recovers(kind, words, hint, overrides=(f"++policy_base_url={url}",))


def test_a_model_endpoint_that_hangs(fails_and_recovers: Callable[..., None], model: "MockModel") -> None:
    model.reset()
    model.set(hang_nth=1)
    fails_and_recovers(
        "timeout",
        "no reply within 0.3 s",
        "raise request_timeout_s, or limit completions",
        overrides=(f"{MODEL}.request_timeout_s=0.3",),
    )


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("malformed", "invalid_response", "the reply is not a response (body: Invalid JSON: EOF while parsing"),
        ("html", "invalid_response", "(body: Invalid JSON: expected value at line 1 column 1): <html><body>gateway"),
        ("schema", "invalid_response", "the reply is not a response (id: Field required;"),
        ("error200", "model_error", "replied with an error: overloaded; the endpoint itself failed"),
        ("cut", "connection", "the reply broke off; check that the endpoint is up"),
    ],
)
def test_a_model_endpoint_that_gives_no_valid_response(
    fails_and_recovers: Callable[..., None], model: "MockModel", fault: str, kind: str, words: str
) -> None:
    model.set(faults=f"{fault}:1")
    fails_and_recovers(kind, f"model mock-model at {model.base_url}: ", words)


def test_a_model_endpoint_that_fails_now_and_then_is_asked_again(desk: Desk, model: "MockModel") -> None:
    model.set(error_rate=0.3, seed=1)
    expect(desk.type(*COLLECT, *GO_ON), 0, "2 of 2 rollouts completed")
    assert model.stats()["errors"] > 0


# ---- tools and verification ------------------------------------------------------------------------------------------
def test_a_tool_that_raises_is_told_to_the_model(desk: Desk) -> None:
    arguments = write_environment("striking", tool="raise ValueError('no weather today')")
    ran = desk.type("ng_collect_rollouts", *arguments, *GO_ON)
    assert ran.code == 0
    assert "error: Mine___mine: /get_weather failed: ValueError('no weather today')" in ran.err
    assert desk.tool_output() == json.dumps("ValueError('no weather today')")


def test_a_tool_that_does_not_exist_is_told_to_the_model(desk: Desk) -> None:
    arguments = write_environment("toolless", setup="pass")
    expect(desk.type("ng_collect_rollouts", *arguments, *GO_ON), 0, "2 of 2 rollouts completed")
    assert desk.tool_output() == '{"detail":"Not Found"}'


def test_arguments_that_are_not_json_are_told_to_the_model(desk: Desk, model: "MockModel") -> None:
    model.set(faults="badargs:1")
    expect(desk.type(*COLLECT, *GO_ON), 0, "2 of 2 rollouts completed")
    assert json.loads(desk.tool_output())["error"].startswith("Invalid tool call arguments: JSONDecodeError(")


def test_a_tool_that_hangs_ends_with_the_time_of_the_rollout(desk: Desk) -> None:
    arguments = write_environment("dawdling", tool="import asyncio; await asyncio.sleep(3600)")
    ran = desk.type("ng_collect_rollouts", *arguments, *GO_ON, "+rollout_timeout_s=0.3")
    expect(ran, 3, "\ntimeout ", "no reply within 0.3 s", "1 of 2 rollouts completed (1 failed)")


def test_a_verifier_that_raises_gives_a_failure_and_no_reward(desk: Desk) -> None:
    arguments = write_environment("unfair", verify="raise KeyError('expected_answer')")
    ran = desk.type("ng_collect_rollouts", *arguments, *GO_ON)
    assert ran.code == 3
    assert "error: Mine___mine: /verify failed: KeyError('expected_answer')" in ran.err
    assert "verifier_error " in ran.err
    (failure,) = desk.failures()
    assert failure["_ng_failure_class"] == "verifier_error"
    assert "KeyError('expected_answer')" in failure["error_message"]
    assert "reward" not in failure
