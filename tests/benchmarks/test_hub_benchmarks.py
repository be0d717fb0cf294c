"""Each benchmark whose data is on the hub: from the published form to a verified answer, on made-up rows."""

import csv
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym import PARENT_DIR
from nemo_gym.data.hub import HubFile, write_rows
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.prompt import apply_prompt_to_row, load_prompt_config
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app
from resources_servers.math_answers.app import MathAnswersConfig, MathAnswersServer
from resources_servers.multiple_choice.app import MultipleChoiceConfig, MultipleChoiceServer
from resources_servers.verifiable_instructions.app import VerifiableInstructionsConfig, VerifiableInstructionsServer

Row = dict[str, Any]
OWN = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py"}
SERVERS = {
    "math_answers": lambda client: MathAnswersServer(config=MathAnswersConfig(name="s", **OWN), server_client=client),
    "multiple_choice": lambda client: MultipleChoiceServer(
        config=MultipleChoiceConfig(name="s", **OWN), server_client=client
    ),
    "verifiable_instructions": lambda client: VerifiableInstructionsServer(
        config=VerifiableInstructionsConfig(name="s", **OWN), server_client=client
    ),
}


def aime(number: int) -> Row:
    return {"id": number, "problem": f"Problem {number}?", "answer": f"{number:03d}"}


def gpqa(number: int) -> Row:
    wrong = {f"Incorrect Answer {place}": f"wrong {place}" for place in (1, 2, 3)}
    return {"Question": f"q{number}", "Correct Answer": " right", **wrong, "High-level domain": "Physics"}


def mmlu(number: int) -> Row:
    options = [f"o{place}" for place in range(10)]
    return {"question_id": number, "question": "q", "options": options, "answer": "J", "category": "law"}


def ifeval(number: int) -> Row:
    kwargs = [{"num_words": 2.0, "relation": "at least", "N": None}]
    names = ["length_constraints:number_words"]
    return {"key": number, "prompt": "Say {two} words.", "instruction_id_list": names, "kwargs": kwargs}


def ifbench(number: int) -> Row:
    return {"key": str(number), "prompt": "p", "instruction_id_list": ["count:numbers"], "kwargs": [{"N": 1.0}]}


def math500(number: int) -> Row:
    fields = {"problem": "p", "solution": "s", "answer": r"\frac{1}{2}", "subject": "Algebra", "level": 3}
    return {**fields, "unique_id": f"test/{number}.json"}


# The published form of a row, the server, and an answer in the form that the prompt asks for.
CASES: dict[str, tuple[Callable[[int], Row], str, Callable[[Row], str], Callable[[Row], str]]] = {
    "gsm8k": (
        lambda number: {"question": f"q{number}", "answer": "so <<1+1=2>>2\n#### 1,234"},
        "math_answers",
        lambda _: r"It is \boxed{1,234}.",
        lambda _: r"\boxed{1}",
    ),
    "math-500": (math500, "math_answers", lambda _: r"\boxed{\frac12}", lambda _: r"\boxed{\frac13}"),
    "aime24": (aime, "math_answers", lambda row: rf"\boxed{{{row['expected_answer']}}}", lambda _: r"\boxed{999}"),
    "aime25": (aime, "math_answers", lambda row: rf"\boxed{{{row['expected_answer']}}}", lambda _: r"\boxed{999}"),
    "gpqa": (gpqa, "multiple_choice", lambda row: f"So\nAnswer: {row['expected_answer']}", lambda _: "Answer: Z"),
    "mmlu_pro": (mmlu, "multiple_choice", lambda _: "Hence the answer is (J).", lambda _: "The answer is (A)."),
    "ifeval": (ifeval, "verifiable_instructions", lambda _: "two words", lambda _: "one"),
    "ifbench": (ifbench, "verifiable_instructions", lambda _: "just 1", lambda _: "none"),
}


def response(text: str) -> Row:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": "r", "created_at": 0, "model": "scripted", "output": [item], **fixed}


def publish(source: HubFile, rows: list[Row], folder: Path) -> None:
    path = folder / source.repo_id / source.path
    path.parent.mkdir(parents=True)
    if path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow", reason="pip install 'rollout-gym[data]'")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        write_rows(rows, path)


def load_script(name: str, folder: Path) -> Any:
    """The script from a copy, so that it writes beside the copy."""
    path = folder / name / "prepare.py"
    path.parent.mkdir(parents=True)
    shutil.copy(PARENT_DIR / "benchmarks" / name / "prepare.py", path)
    spec = importlib.util.spec_from_file_location(f"prepare_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def dataset_of(name: str) -> Row:
    wanted = GlobalConfigDictParserConfig(
        overrides=[f"+config_paths=[benchmarks/{name}/config.yaml]"],
        initial_global_config_dict=GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT,
    )
    config = OmegaConf.to_container(GlobalConfigDictParser().parse(wanted), resolve=True)
    agent = config[f"{name.replace('-', '_')}_simple_agent"]["responses_api_agents"]["simple_agent"]
    assert agent["resources_server"]["name"] == name.replace("-", "_")
    (dataset,) = agent["datasets"]
    return dataset


async def reward(server: str, row: Row, text: str) -> float:
    client = ServerClient.detached()
    client.attach("s", LocalServer(build_app(SERVERS[server](client)), label="s", base_url="http://127.0.0.1:1"))
    reply = await client.post(server_name="s", url_path="/verify", json={**row, "response": response(text)})
    assert reply.status == 200, await reply.text()
    return (await reply.json())["reward"]


@pytest.mark.parametrize("name", CASES)
async def test_a_benchmark_is_prepared_asked_and_verified(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, server, right, wrong = CASES[name]
    if server == "math_answers" and importlib.util.find_spec("math_verify") is None:
        pytest.skip("pip install 'rollout-gym[environments]'")
    script = load_script(name, tmp_path / "benchmarks")
    publish(script.SOURCE, [published(number) for number in range(script.SOURCE.rows)], tmp_path / "hub")
    monkeypatch.setenv("ROLLOUT_GYM_HUB_FOLDER", str(tmp_path / "hub"))
    output = script.prepare()
    dataset = dataset_of(name)
    assert output == tmp_path / dataset["jsonl_fpath"]
    lines = output.read_text("utf-8").splitlines()
    assert len(lines) == script.SOURCE.rows
    row = apply_prompt_to_row(json.loads(lines[-1]), load_prompt_config(dataset["prompt_config"]))
    assert row["responses_create_params"]["input"][-1]["content"].strip()
    assert await reward(server, row, right(row)) == 1.0
    assert await reward(server, row, wrong(row)) == 0.0


def test_the_order_of_options_depends_on_the_question_alone(tmp_path: Path) -> None:
    script = load_script("gpqa", tmp_path)
    rows = [script.task(gpqa(number), number) for number in range(40)]
    assert rows == [script.task(gpqa(number), number) for number in range(40)]
    assert {row["expected_answer"] for row in rows} == {"A", "B", "C", "D"}
