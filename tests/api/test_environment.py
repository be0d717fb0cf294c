"""An environment in one file: tools, state, scoring, and what is refused before anything runs."""

import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import nemo_gym
from nemo_gym.api.environment import Environment
from nemo_gym.api.environment_file import load_environment, load_server_class
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.errors import ConfigError
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.loader import build_app, construct

SETTINGS = {"name": "letters", "host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "domain": "other"}
TASK = {"prompt": "How many r are in strawberry?", "expected": 3}


def response_with(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": "r", "created_at": 1, "model": "m", "output": [message], **fixed}


def client_of(server_class: type[SimpleResourcesServer]) -> TestClient:
    server = construct(server_class, SETTINGS, ServerClient.detached(), where="letters")
    return TestClient(build_app(server), raise_server_exceptions=False)


def verdict(environment: Environment, text: str, task: dict[str, Any] = TASK) -> dict[str, Any]:
    client = client_of(environment.server_class())
    (row,) = environment.rows([task])
    assert client.post("/seed_session", json=row).status_code == 200
    reply = client.post("/verify", json={**row, "response": response_with(text)})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


@pytest.fixture
def letters() -> Environment:
    environment = nemo_gym.Environment(tasks=[TASK], system="Count.", max_steps=3)

    @environment.setup
    def start(task: dict[str, Any]) -> dict[str, int]:
        return {"calls": 0, "expected": task["expected"]}

    @environment.tool
    def spell(word: str, state: dict[str, int], times: int = 1) -> list[str]:
        """Spell a word, letter by letter."""
        state["calls"] += 1
        return list(word) * times

    @environment.tool
    async def shout(word: str) -> str:
        """Say it loud."""
        return word.upper()

    @environment.verify
    def score(task: dict[str, Any], response: Any, state: dict[str, int]) -> dict[str, Any]:
        return {"reward": float(str(task["expected"]) in response.text), "calls": state["calls"]}

    return environment


def test_rows_hold_the_prompt_the_system_message_and_the_tools(letters: Environment) -> None:
    (row,) = letters.rows()
    params = row["responses_create_params"]
    assert [message["role"] for message in params["input"]] == ["system", "user"]
    assert row["expected"] == 3
    spell = params["tools"][0]
    assert spell["description"] == "Spell a word, letter by letter."
    assert spell["parameters"] == {
        "type": "object",
        "properties": {"word": {"type": "string"}, "times": {"type": "integer", "default": 1}},
        "required": ["word"],
        "additionalProperties": False,
    }


def test_tools_and_verify_share_the_state_of_their_rollout_alone(letters: Environment) -> None:
    app = client_of(letters.server_class()).app
    first, second = TestClient(app), TestClient(app)
    (row,) = letters.rows()
    for client in (first, second):
        client.post("/seed_session", json=row)
    assert first.post("/spell", json={"word": "ab"}).json() == ["a", "b"]
    assert first.post("/shout", json={"word": "ab"}).text == "AB"
    verdicts = [
        client.post("/verify", json={**row, "response": response_with("3")}).json() for client in (first, second)
    ]
    assert [each["calls"] for each in verdicts] == [1, 0]
    assert [each["reward"] for each in verdicts] == [1.0, 1.0]


def test_arguments_that_do_not_fit_are_explained_to_the_model(letters: Environment) -> None:
    reply = client_of(letters.server_class()).post("/shout", json={"wort": "a"})
    assert reply.status_code == 422
    assert "word" in reply.text


@pytest.mark.parametrize(
    ("returned", "reward"), [(True, 1.0), (0, 0.0), (0.25, 0.25), ({"reward": 1, "chars": 5}, 1.0)], ids=repr
)
def test_what_verify_may_return(returned: Any, reward: float) -> None:
    environment = nemo_gym.Environment()
    environment.verify(lambda task, response: returned)
    found = verdict(environment, "hello")
    assert found["reward"] == reward
    assert found["expected"] == 3
    assert isinstance(returned, dict) is ("chars" in found)


NAMED = [
    lambda response, task, state: float(response.text == "3" and task["expected"] == 3 and state == "made"),
    lambda state, task, response: float(response.text == "3" and task["expected"] == 3 and state == "made"),
    lambda task, response, *, state: float(response.text == "3" and task["expected"] == 3 and state == "made"),
    lambda task, *, response: float(response.text == "3" and task["expected"] == 3),
    lambda row, answer, made: float(answer.text == "3" and row["expected"] == 3 and made == "made"),
    lambda row, answer, /: float(answer.text == "3" and row["expected"] == 3),
    lambda task, scale=1, response=None: float(scale == 1 and response.text == "3"),
    lambda task, state: float(task["expected"] == 3 and state == "made"),
    lambda response: float(response.text == "3"),
    partial(lambda wanted, task, response: float(response.text == wanted), "3"),
]


@pytest.mark.parametrize("function", NAMED, ids=range(len(NAMED)))
def test_parameters_get_what_they_are_called_after(function: Callable[..., Any]) -> None:
    environment = nemo_gym.Environment()
    environment.setup(lambda: "made")
    environment.verify(function)
    assert verdict(environment, "3")["reward"] == 1.0


def test_numbers_of_numpy_are_numbers() -> None:
    environment = nemo_gym.Environment()
    environment.verify(lambda task, response: np.float32(0.5))
    assert verdict(environment, "3")["reward"] == 0.5
    environment.verify(lambda task, response: {"reward": np.bool_(True), "letters": np.int64(3)})
    found = verdict(environment, "3")
    assert (found["reward"], found["letters"]) == (1.0, 3)


def test_a_type_can_make_the_state() -> None:
    environment = nemo_gym.Environment()
    environment.setup(dict)
    environment.verify(lambda task, response, state: float(state == {}))
    assert verdict(environment, "3")["reward"] == 1.0


def test_setup_and_metrics_that_can_not_be_called_are_refused_where_they_are_defined() -> None:
    environment = nemo_gym.Environment()
    with pytest.raises(ConfigError, match=r"setup: <lambda>\(task, more\) can't be called"):
        environment.setup(lambda task, more: {})
    with pytest.raises(ConfigError, match=r"metrics: <lambda>\(\) can't be called"):
        environment.metrics(lambda: None)


@pytest.mark.parametrize("returned", [None, "1.0", {"score": 1}, float("nan"), {"reward": "high"}], ids=repr)
def test_what_is_not_a_reward_is_an_error_and_never_zero(returned: Any) -> None:
    environment = nemo_gym.Environment()
    environment.verify(lambda task, response: returned)
    (row,) = environment.rows([TASK])
    reply = client_of(environment.server_class()).post("/verify", json={**row, "response": response_with("3")})
    assert reply.status_code == 500
    assert "verify returned" in reply.text


def test_a_method_with_task_and_response_works_in_a_server_class() -> None:
    class Letters(SimpleResourcesServer):
        config: BaseResourcesServerConfig

        async def verify(self, task: Any, response: Any) -> dict[str, float]:  # type: ignore[override]
            return {"reward": float(str(task["expected"]) in response.output_text), "length": len(response.text)}

    row = {**TASK, "responses_create_params": {"input": "?"}}
    reply = client_of(Letters).post("/verify", json={**row, "response": response_with("It is 3.")})
    assert (reply.json()["reward"], reply.json()["length"]) == (1.0, 8)


def test_a_method_that_does_not_say_what_it_takes_gets_the_whole_rollout() -> None:
    class Letters(SimpleResourcesServer):
        config: BaseResourcesServerConfig

        async def verify(self, body: Any) -> dict[str, float]:  # type: ignore[override]
            return {"reward": float(body.expected == 3)}

    row = {**TASK, "responses_create_params": {"input": "?"}}
    reply = client_of(Letters).post("/verify", json={**row, "response": response_with("3")})
    assert reply.json()["reward"] == 1.0


@pytest.mark.parametrize("text", ["<think>It is 3.</think>Four.", "<think>It is 3."])
def test_reasoning_is_not_the_answer(letters: Environment, text: str) -> None:
    assert verdict(letters, text)["reward"] == 0.0


SIGNATURES: list[Callable[..., Any]] = [
    lambda: 1.0,
    lambda task, response, state, more: 1.0,
    lambda *everything: 1.0,
    lambda task, response, *, judge: 1.0,
    lambda answer: 1.0,
    lambda answer, state: 1.0,
]


@pytest.mark.parametrize("function", SIGNATURES, ids=range(len(SIGNATURES)))
def test_impossible_signatures_are_refused_when_the_server_is_built(function: Callable[..., Any]) -> None:
    environment = nemo_gym.Environment()
    environment.verify(function)
    with pytest.raises(ConfigError, match="can't be called") as refused:
        client_of(environment.server_class())
    assert "(task, response)" in (refused.value.hint or "")


def test_a_state_that_nobody_makes_and_a_missing_verify_are_refused() -> None:
    environment = nemo_gym.Environment()
    with pytest.raises(ConfigError, match="no verify function"):
        environment.server_class()
    environment.verify(lambda task, response, state: 1.0)
    with pytest.raises(ConfigError, match="nothing makes one"):
        client_of(environment.server_class())


def test_prompts_come_from_a_template_a_function_or_messages() -> None:
    tasks = [{"question": "Why?"}]

    def asked(**options: Any) -> Any:
        (row,) = nemo_gym.Environment(lambda: iter(tasks), **options).rows()
        return row["responses_create_params"]["input"]

    assert asked(prompt="Q: {question}") == [{"role": "user", "content": "Q: Why?"}]
    assert asked(prompt=lambda task: [{"role": "user", "content": task["question"]}])[0]["content"] == "Why?"
    with pytest.raises(ConfigError, match="task 1 has no field 'prompt'"):
        asked()


def test_metrics_are_the_authors_own() -> None:
    environment = nemo_gym.Environment()
    environment.verify(lambda task, response: 1.0)
    environment.metrics(lambda tasks: {"best": max(rollout["reward"] for task in tasks for rollout in task)})
    rollouts = [{"reward": reward, "_ng_task_index": 0, "_ng_rollout_index": i} for i, reward in enumerate((0.0, 0.5))]
    reply = client_of(environment.server_class()).post("/aggregate_metrics", json={"verify_responses": rollouts})
    assert reply.json()["key_metrics"] == {"mean/reward": 0.25, "best": 0.5}


# ---- files -----------------------------------------------------------------------------------------------------------
def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


def test_a_file_is_loaded_once_and_named_after_itself(tmp_path: Path) -> None:
    write(tmp_path / "words.py", "BASE = 1.0")
    file = write(
        tmp_path / "letters.py",
        """
        import nemo_gym
        from words import BASE
        environment = nemo_gym.Environment(tasks=[{"prompt": "?"}])
        environment.verify(lambda task, response: BASE)
        """,
    )
    environment = load_environment(file)
    assert isinstance(environment, Environment)
    assert environment.name == "letters"
    assert load_environment(file) is environment
    assert verdict(environment, "")["reward"] == 1.0


def test_a_file_may_hold_a_server_class(tmp_path: Path) -> None:
    file = write(
        tmp_path / "server.py",
        """
        from nemo_gym import BaseResourcesServerConfig, SimpleResourcesServer
        class Mine(SimpleResourcesServer):
            config: BaseResourcesServerConfig
            def verify(self, task, response):
                return 0.5
        """,
    )
    row = {"responses_create_params": {"input": "?"}, "response": response_with("")}
    assert client_of(load_server_class(file)).post("/verify", json=row).json()["reward"] == 0.5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1", "defines no environment"),
        ("import nemo_gym\na = nemo_gym.Environment()\nb = nemo_gym.Environment()", "defines 2 environments"),
        ("import nemo_gym\nx = 1 / 0", ":2: ZeroDivisionError"),
        ("def (", ":1: SyntaxError"),
    ],
)
def test_files_that_are_not_environments_say_why(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_environment(write(tmp_path / "broken.py", content))
    with pytest.raises(ConfigError, match="no such file"):
        load_environment(tmp_path / "missing.py")
