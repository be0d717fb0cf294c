"""What an import costs and what it offers: no heavy module on the usual paths, every name that authors import."""

import importlib
import inspect
import json
import os
import pkgutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest

import nemo_gym

if TYPE_CHECKING:
    from conftest import MockModel

HEAVY = {"ray", "pandas", "wandb", "torch", "datasets", "transformers", "openai", "matplotlib"}
EXAMPLE = "resources_servers/example_single_tool_call"
CONFIG_PATHS = (
    f"+config_paths=[{EXAMPLE}/configs/example_single_tool_call.yaml,"
    "responses_api_models/openai_model/configs/openai_model.yaml]"
)

# Notes every module that somebody looks for, whether or not it is installed here.
LISTENING = """
import json, sys
class Listener:
    asked = set()
    def find_spec(self, name, path=None, target=None):
        self.asked.add(name.partition(".")[0])
sys.meta_path.insert(0, Listener())
{code}
print(json.dumps(sorted(Listener.asked)))
"""
COMMAND = "from nemo_gym.cli.main import main; assert main({argv!r}) == 0"


def packages_wanted_by(code: str, folder: Path) -> set[str]:
    """The packages that a program looks for from start to end, in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", LISTENING.format(code=code)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("NEMO_GYM_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def project(tmp_path: Path, mock_model: "MockModel") -> Path:
    (tmp_path / "env.yaml").write_text(
        f"policy_base_url: {mock_model.base_url}\npolicy_api_key: none\npolicy_model_name: mock\n"
    )
    return tmp_path


def test_programs_that_collect_rollouts_do_not_pay_for_servers_or_metrics(tmp_path: Path) -> None:
    wanted = packages_wanted_by("import nemo_gym.rollout_collection", tmp_path)
    assert "pydantic" in wanted
    assert not wanted & (HEAVY | {"aiohttp", "fastapi", "uvicorn", "hydra", "numpy"})


def test_nobody_pays_for_the_sandbox_who_does_not_use_it(tmp_path: Path) -> None:
    code = "import sys, nemo_gym, nemo_gym.rollout_collection; assert not [m for m in sys.modules if 'sandbox' in m]"
    packages_wanted_by(code, tmp_path)
    light = (
        "import sys, nemo_gym.sandbox.inside.server; assert not {'asyncio', 'subprocess', 'logging'} & {*sys.modules}"
    )
    packages_wanted_by(light, tmp_path)


def test_nothing_heavy_is_imported_to_collect_rollouts(project: Path) -> None:
    argv = [
        "ng_collect_rollouts",
        CONFIG_PATHS,
        "+agent_name=example_single_tool_call_simple_agent",
        f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl",
        "+output_jsonl_fpath=results/one.jsonl",
        "+limit=1",
    ]
    wanted = packages_wanted_by(COMMAND.format(argv=argv), project)
    assert "fastapi" in wanted
    # aiohttp asks the model; nothing on the command line takes Hydra to read.
    assert not wanted & HEAVY
    assert len((project / "results" / "one.jsonl").read_text().splitlines()) == 1


def test_nothing_heavy_is_imported_to_run_servers(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = f"+head_server={{host: 127.0.0.1, port: {server.getsockname()[1]}}}"
    argv = ["ng_run", CONFIG_PATHS, head, "+dry_run=true"]
    wanted = packages_wanted_by(COMMAND.format(argv=argv), project)
    assert "fastapi" in wanted
    assert not wanted & (HEAVY | {"aiohttp"})


def test_help_is_quick(tmp_path: Path) -> None:
    wanted = packages_wanted_by(COMMAND.format(argv=["ng", "--help"]), tmp_path)
    assert not wanted & (HEAVY | {"pydantic", "omegaconf", "fastapi", "aiohttp", "numpy"})


# Names that the servers of NeMo Gym import, by module; the most used ones first.
NAMES = {
    "nemo_gym": "PARENT_DIR",
    "nemo_gym.server_utils": """
        ServerClient get_response_json raise_for_status SESSION_ID_KEY request get_server_url
        is_nemo_gym_fastapi_entrypoint get_first_server_config_dict
    """,
    "nemo_gym.openai_utils": """
        NeMoGymResponse NeMoGymResponseCreateParamsNonStreaming NeMoGymEasyInputMessage NeMoGymResponseOutputMessage
        NeMoGymResponseOutputText NeMoGymResponseFunctionToolCall NeMoGymFunctionCallOutput
        NeMoGymChatCompletionCreateParamsNonStreaming NeMoGymResponseReasoningItem NeMoGymChatCompletion NeMoGymSummary
        NeMoGymResponseOutputItem NeMoGymResponseUsage NeMoGymResponseInputTokensDetails
        NeMoGymResponseOutputTokensDetails NeMoGymResponseOutputRefusal NeMoGymAsyncOpenAI
        NeMoGymResponseOutputMessageForTraining NeMoGymChatCompletionMessage NeMoGymChoice RATE_LIMIT_ERROR_CODES
        RETRY_ERROR_CODES NeMoGymResponseInput NeMoGymMessage NeMoGymChatCompletionMessageParam
        NeMoGymResponseFunctionToolCallForTraining NeMoGymChatCompletionAssistantMessageForTrainingParam
        NeMoGymChatCompletionAssistantMessageParam NeMoGymChatCompletionContentPartTextParam
        NeMoGymChatCompletionMessageForTraining NeMoGymChatCompletionMessageToolCall
        NeMoGymChatCompletionMessageToolCallFunctionParam NeMoGymChatCompletionMessageToolCallParam
        NeMoGymChatCompletionSystemMessageParam NeMoGymChatCompletionToolMessageParam
        NeMoGymChatCompletionUserMessageParam NeMoGymFunction NeMoGymFunctionToolParam NeMoGymResponseInputText
    """,
    "nemo_gym.base_resources_server": """
        BaseVerifyResponse BaseVerifyRequest BaseResourcesServerConfig SimpleResourcesServer BaseRunRequest
        AggregateMetricsRequest BaseSeedSessionRequest BaseSeedSessionResponse AggregateMetrics NeMoGymResponse
        NeMoGymResponseCreateParamsNonStreaming
    """,
    "nemo_gym.base_responses_api_agent": """
        BaseResponsesAPIAgentConfig SimpleResponsesAPIAgent Body AggregateMetricsRequest
    """,
    "nemo_gym.base_responses_api_model": "BaseResponsesAPIModelConfig SimpleResponsesAPIModel Body",
    "nemo_gym.config_types": "ModelServerRef ResourcesServerRef AggregateMetricsRequest AggregateMetrics OmegaConf",
    "nemo_gym.global_config": """
        get_first_server_config_dict ROLLOUT_INDEX_KEY_NAME TASK_INDEX_KEY_NAME get_global_config_dict get_hf_token
        AGENT_REF_KEY_NAME OmegaConf SKILLS_REF_KEY_NAME NEMO_GYM_LOG_DIR_KEY_NAME DISALLOWED_PORTS_KEY_NAME
        find_open_port DictConfig HF_TOKEN_KEY_NAME
    """,
    "nemo_gym.prompt": "load_prompt_config PromptConfig fill_prompt apply_prompt_to_row",
    "nemo_gym.reward_profile": """
        compute_pass_majority_metrics highest_k_metrics compute_subset_metrics add_avg_sample_std_dev
    """,
    "nemo_gym.responses_converter": """
        VLLMConverter VLLMConverterResponsesToChatCompletionsState split_responses_input_output_items ResponsesConverter
    """,
    "nemo_gym.rollout_collection": "RolloutCollectionHelper",
    "nemo_gym.sandbox": """
        AsyncSandbox Sandbox SandboxSpec SandboxResources SandboxExecResult ExecResult SandboxHandle SandboxStatus
        SandboxCreateError SandboxCreateVerificationError SandboxProvider register_provider get_provider_class
        list_providers create_provider resolve_provider_config
    """,
    "nemo_gym.skills": "stage_skills",
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in NAMES.items() for name in names.split()]
)
def test_names_are_where_authors_import_them(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is not None


def public_functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The functions and the methods that a module defines itself."""
    for name, value in list(vars(module).items()):
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        members = {name: value} if isinstance(value, FunctionType) else {}
        if inspect.isclass(value):
            own = list(vars(value).items())
            members = {
                f"{name}.{each}": getattr(found, "__func__", getattr(found, "fget", found)) for each, found in own
            }
        for each, found in members.items():
            # Functions that a library put into a class have its globals.
            if isinstance(found, FunctionType) and found.__globals__ is vars(module):
                yield f"{module.__name__}.{each}", found


def test_the_type_hints_of_every_function_can_be_resolved() -> None:
    unresolved, count = {}, 0
    for found in pkgutil.walk_packages(nemo_gym.__path__, "nemo_gym."):
        if found.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # of an extra that is not installed
            if (error.name or "").startswith("nemo_gym"):
                raise
            continue
        for name, function in public_functions(module):
            count += 1
            try:
                get_type_hints(function)
            except (NameError, TypeError) as error:
                unresolved[name] = str(error)
    assert not unresolved
    assert count > 2000
