"""Typical mistakes, one a line: what was typed, which code the shell gets, and what the screen says.

Every command ends by itself, without a traceback, says what is wrong or what to type, and asks no model for anything.
"""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import pytest

from nemo_gym.cli.main import main
from nemo_gym.global_config import reset_global_config

if TYPE_CHECKING:
    from conftest import MockModel

EXAMPLE = "resources_servers/example_single_tool_call"
MODEL_CONFIG = "responses_api_models/openai_model/configs/openai_model.yaml"
CONFIGS = f"+config_paths=[{EXAMPLE}/configs/example_single_tool_call.yaml,{MODEL_CONFIG}]"
AGENT = "+agent_name=example_single_tool_call_simple_agent"
INPUT = f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl"
OUTPUT = "+output_jsonl_fpath=results/out.jsonl"
COLLECT = f"ng_collect_rollouts {CONFIGS} {AGENT} {OUTPUT}"
ONE = f"{COLLECT} {INPUT} +limit=1"
TASK = {"responses_create_params": {"input": "hi"}}
LINE = json.dumps(TASK) + "\n"


class Mistake(NamedTuple):
    """What was typed, the exit code, what the screen says, and the files that were there."""

    typed: str
    code: int
    says: tuple[str, ...]
    files: Mapping[str, str | bytes] = MappingProxyType({})


def tasks(content: str | bytes, *says: str, name: str = "tasks.jsonl") -> Mistake:
    return Mistake(f"{COLLECT} +input_jsonl_fpath={name}", 1, says, {name: content})


def config(text: str, *says: str, code: int = 1) -> Mistake:
    return Mistake(f"ng_run +config_paths=[mine.yaml,{MODEL_CONFIG}]", code, says, {"mine.yaml": text})


def environment(text: str, *says: str) -> Mistake:
    typed = "ng eval run mine.py --model openai:mock --model-url http://127.0.0.1:9/v1 --model-api-key none"
    return Mistake(typed, 1, says, {"mine.py": text})


MISTAKES = {
    # ---- task files
    "no task file": Mistake(f"{COLLECT} +input_jsonl_fpath=task.jsonl", 1, ("'task.jsonl' does not exist",)),
    "a folder of tasks": Mistake(f"{COLLECT} +input_jsonl_fpath={EXAMPLE}/data", 1, ("data is a folder",)),
    "an empty task file": tasks("", "has no tasks, so there is nothing to run"),
    "a JSON array": tasks(json.dumps([TASK, TASK]), "is a JSON array", "hint: jq -c"),
    "UTF-16": tasks(LINE.encode("utf-16"), "is text in UTF-16", "hint: iconv"),
    "NaN": tasks(
        '{"responses_create_params": {"input": "hi"}, "score": NaN}\n', "line 1 is not a task: it has the value NaN"
    ),
    "a line cut off": tasks(
        LINE + LINE[:20] + "\n",
        "line 2 is not a task: unexpected end of data",
        "hint: each line has to be one JSON object",
    ),
    "a line that is no object": tasks(LINE + "[1, 2]\n", "line 2 is not a task: it is not a JSON object"),
    "a table": tasks(
        "question,answer\nhi,ho\n", "is a table (CSV)", "hint: in Python: pandas.read_csv(", name="tasks.csv"
    ),
    "parquet": tasks(
        b"PAR1\x15\x04\x15", "is a table (Parquet)", "hint: in Python: pandas.read_parquet(", name="tasks.parquet"
    ),
    "no request": tasks('{"question": "hi"}\n', "rows [0] (counted from 0) have no responses_create_params object"),
    "a damaged archive": tasks(
        gzip.compress(LINE.encode())[:-6],
        "can't read the input",
        "hint: the file is damaged or incomplete",
        name="tasks.jsonl.gz",
    ),
    # ---- outputs
    "an output that is a folder": Mistake(f"{ONE} ++output_jsonl_fpath=results", 1, ("results",), {"results/x": ""}),
    "an output that can't be": Mistake(f"{ONE} ++output_jsonl_fpath=/proc/no/out.jsonl", 1, ("/proc/no",)),
    "the input as output": Mistake(
        f"{ONE} ++input_jsonl_fpath=t.jsonl ++output_jsonl_fpath=t.jsonl",
        1,
        (
            "is also the output",
            "hint: choose another output",
        ),
        {"t.jsonl": LINE},
    ),
    "an output of another program": Mistake(
        ONE,
        1,
        (
            "already holds 1 line without a rollout",
            "add +overwrite=true",
        ),
        {"results/out.jsonl": "hello\n"},
    ),
    # ---- parameters
    "a misspelt parameter": Mistake(
        f"{ONE} +num_repeat=2", 2, ("unknown parameter 'num_repeat'. Did you mean: 'num_repeats'",)
    ),
    "half of a parameter": Mistake(
        "ng_viewer +port=8000", 2, ("unknown parameter 'port'. Did you mean: ", "'server_port'")
    ),
    "no plus": Mistake(
        f"{ONE} num_repeats=2",
        2,
        (
            "'num_repeats=<value>' has nothing to override",
            "hint: to set it, use '+num_repeats=<value>'",
        ),
    ),
    "a space after the sign": Mistake(
        f"{COLLECT} {INPUT} +limit= 2",
        2,
        (
            "there is a space in '+limit= 2'",
            "hint: write it without the space: +limit=2",
        ),
    ),
    "no repeats": Mistake(f"{ONE} +num_repeats=0", 2, ("num_repeats must be at least 1, got 0",)),
    "a word for a number": Mistake(f"{COLLECT} {INPUT} +limit=ten", 2, ("limit (expected int or null): ",)),
    "a negative number": Mistake(
        f"{ONE} +num_samples_in_parallel=-1",
        2,
        ("num_samples_in_parallel (expected int or auto or null): must not be negative",),
    ),
    "a choice that is none": Mistake(
        f"{ONE} +resume_mode=forced", 2, ("resume_mode (expected strict | extend | force): the value is none of these",)
    ),
    "a misspelt sampling parameter": Mistake(
        f"{ONE} +responses_create_params.temprature=1", 2, ("did you mean 'temperature'?",)
    ),
    "overwrite and resume": Mistake(
        f"{ONE} +overwrite=true +resume_from_cache=true",
        2,
        ("overwrite starts over and resume_from_cache continues an earlier run: choose one of them",),
    ),
    "a shard that does not exist": Mistake(f"{ONE} +shard=5/4", 2, ("'5/4' is not a part of the tasks: write 0/16",)),
    "workers in words": Mistake(
        f"{ONE} +workers=many", 2, ("workers (expected int or auto or null): the value is none of these\n",)
    ),
    "an executor that does not exist": Mistake(
        f"{ONE} +executor=rai", 2, ("executor (expected local | ray): the value is none of these",)
    ),
    "a bracket that is not closed": Mistake(
        f"ng_run +config_paths=[{MODEL_CONFIG}",
        2,
        (
            "can't read '+config_paths=...'",
            "hint: quote the whole argument",
        ),
    ),
    "the parameters of another command": Mistake(
        f"{ONE} +split=train",
        2,
        (
            "both split and input_jsonl_fpath are given",
            "ng_e2e_collect_rollouts is the command for a split",
        ),
    ),
    "a command with a hyphen": Mistake("ng collect-rollouts", 2, ("missing parameters: input_jsonl_fpath",)),
    "a command alone": Mistake(
        "ng eval run", 2, ("missing parameters: input_jsonl_fpath", "name an environment, which has tasks: ng eval run")
    ),
    "nothing to run": Mistake("ng_run", 1, ("defines no servers", "hint: name an environment and a model (calculator")),
    "a flag named after a parameter": Mistake(
        "ng eval run calculator --num-samples-in-parallel 4", 2, ("--concurrency sets num_samples_in_parallel",)
    ),
    "a model without its provider": Mistake(
        "ng eval run calculator --model gpt-4o", 1, ("--model local, openai:NAME, anthropic:NAME or vllm:NAME",)
    ),
    "an address without a scheme": Mistake(
        "ng eval run calculator --model openai:m --model-url localhost:8000/v1 --model-api-key k",
        1,
        ("'localhost:8000/v1' is not a complete address", "hint: write the address with its scheme"),
    ),
    "a command that does not exist": Mistake(
        "ng evaluate",
        2,
        (
            "unknown command evaluate",
            "'eval'",
        ),
    ),
    # ---- configurations
    "no such configuration": Mistake(
        "ng_run +config_paths=[mine.yml]", 1, ("config file 'mine.yml' does not exist. Looked for:",)
    ),
    "a list without brackets": Mistake(
        f"ng_run +config_paths={MODEL_CONFIG},{MODEL_CONFIG}",
        2,
        (
            "gives 'config_paths' several values",
            "hint: a list needs brackets",
        ),
    ),
    "indentation": config("a:\n  b: 1\n c: 2\n", "mine.yaml:3:2: malformed YAML"),
    "tabs": config("a:\n\tb: 1\n", "mine.yaml:2:1: malformed YAML", "indented with spaces, not tabs"),
    "a type of server that does not exist": config(
        "mine:\n  resource_servers:\n    x: {entrypoint: app.py}\n",
        "'resource_servers' is not a server type",
        "did you mean 'resources_servers'?",
    ),
    "a folder that does not exist": config(
        "mine:\n  resources_servers:\n    x: {entrypoint: app.py}\n", "Almost-Server Detected: 'mine' (mine.yaml:1)"
    ),
    "a broken env.yaml": Mistake(ONE, 1, ("env.yaml:2:1: malformed YAML",), {"env.yaml": "policy_api_key: [\n"}),
    "an env.yaml with a list": Mistake(
        ONE,
        1,
        (
            "env.yaml: the top level is not a mapping",
            "write 'key: value' lines",
        ),
        {"env.yaml": "- policy_api_key: x\n"},
    ),
    "an env.yaml without the key": Mistake(
        ONE,
        1,
        (
            "needs ${policy_api_key}, which is not set",
            "hint: put these into env.yaml",
        ),
        {"env.yaml": "policy_model_name: x\n"},
    ),
    "a misspelt agent": Mistake(
        ONE.replace("simple_agent", "simple_agents"),
        1,
        (
            "the plan needs agent",
            "Did you mean: 'example_single_tool_call_simple_agent'?",
        ),
    ),
    "a setting of no server": Mistake(
        f"{ONE} ++policy_model.responses_api_models.openai_model.request_timeout=5",
        1,
        ("did you mean 'request_timeout_s'?",),
    ),
    "no server has that name": Mistake(
        f"{ONE} ++policy_modle.responses_api_models.openai_model.max_retries=5",
        2,
        ("unknown parameter 'policy_modle'. Did you mean: 'policy_model'",),
    ),
    # ---- environments and models by name
    "an environment that does not exist": Mistake(
        "ng eval run calculater --model local",
        2,
        (
            "no environment or benchmark is called calculater",
            "did you mean calculator?",
        ),
    ),
    "a file that does not exist": Mistake("ng eval run lettres.py --model local", 1, ("lettres.py: no such file",)),
    "a model that does not exist": Mistake(
        "ng eval run calculator --model opnai:gpt",
        1,
        (
            "there is no kind of model 'opnai'",
            "Did you mean: 'openai'?",
        ),
    ),
    "a model without a name": Mistake(
        "ng eval run calculator --model openai:",
        1,
        (
            "'openai:' names no model",
            "hint: write openai:NAME",
        ),
    ),
    "no model": Mistake(
        "ng eval run calculator",
        1,
        (
            "'policy_model' is not defined",
            "--model local, openai:NAME, anthropic:NAME or vllm:NAME adds a model",
        ),
    ),
    "an environment with a typo": environment(
        "import nemo_gym\nx = nemo_gym.Enviroment()\n",
        "mine.py:2: AttributeError: module 'nemo_gym' has no attribute 'Enviroment'",
    ),
    "a file without an environment": environment("x = 1\n", "mine.py defines no environment"),
    "an environment without verify": environment(
        "import nemo_gym\nx = nemo_gym.Environment(tasks=[{'prompt': 'hi'}])\n",
        "the environment mine has no verify function",
    ),
    # ---- results
    "an unknown format": Mistake(
        "ng_export +input=r.jsonl +format=stf +output=o.jsonl",
        2,
        ("format (expected sft | sft_tokens",),
        {"r.jsonl": "{}\n"},
    ),
    "an unknown ending": Mistake(
        "ng_export +input=r.jsonl +format=sft +output=o.txt", 2, ("the ending .txt is unknown",), {"r.jsonl": "{}\n"}
    ),
    "nothing to export": Mistake(
        "ng_export +input=nothing.jsonl +format=sft +output=o.jsonl", 1, ("nothing.jsonl: no such file",)
    ),
    "nothing to aggregate": Mistake(
        "ng_aggregate_rollouts +input_glob=r*.jsonl +output_jsonl_fpath=o.jsonl", 1, ("no file matches 'r*.jsonl'",)
    ),
    "a word that is nearly true": Mistake(f"{ONE} +resume_from_cache=tru", 2, ("resume_from_cache (expected bool)",)),
    "parameters that a command does not have": Mistake(
        "ng_compare +baseline=a.jsonl +candidate=b.jsonl", 2, ("this command takes: a, b,",)
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    mock_model: "MockModel",
) -> None:
    mistake = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    env = f"policy_base_url: {mock_model.base_url}\npolicy_api_key: none\npolicy_model_name: mock\n"
    for path, content in {"env.yaml": env, **mistake.files}.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
    code = main(mistake.typed.split(" "))
    reset_global_config()
    _, err = capfd.readouterr()
    assert code == mistake.code, err
    assert "Traceback" not in err
    for words in mistake.says:
        assert words in err
    assert mock_model.stats()["model_calls"] == 0
