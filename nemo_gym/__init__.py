"""Rollout Gym: plans, runs, saves and scores rollouts of LLM agents.

The package name and its public modules are those of NeMo Gym, so that environments, configurations and scripts
written for it run unchanged.
"""

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nemo_gym.api.collecting import acollect as acollect
    from nemo_gym.api.collecting import collect as collect
    from nemo_gym.api.environment import Environment as Environment
    from nemo_gym.api.evaluating import aggregate as aggregate
    from nemo_gym.api.evaluating import benchmark as benchmark
    from nemo_gym.api.evaluating import export as export
    from nemo_gym.api.evaluating import reverify as reverify
    from nemo_gym.api.runs import Rollout as Rollout
    from nemo_gym.api.runs import Run as Run
    from nemo_gym.api.runs import compare as compare
    from nemo_gym.api.runs import load as load

__version__ = "0.1.0"

ROOT_DIR = Path(__file__).absolute().parent
INSTALL_DIR = ROOT_DIR.parent


def _workspace() -> Path | None:
    """The directory in which the command was started, if it holds server folders."""
    here = Path(os.environ.get("NEMO_GYM_STARTED_IN") or Path.cwd())
    return here if any((here / kind).is_dir() for kind in ("resources_servers", "responses_api_agents")) else None


# Where server folders look for each other's files.
PARENT_DIR = _workspace() or INSTALL_DIR
WORKING_DIR = INSTALL_DIR if (INSTALL_DIR / "pyproject.toml").exists() else Path.cwd()
CACHE_DIR = WORKING_DIR / "cache"
RESULTS_DIR = WORKING_DIR / "results"

# Names that people import from the package itself. They are loaded on first use, so importing the package stays cheap.
_EXPORTS: Final = {
    "api.collecting": "acollect collect",
    "api.environment": "Environment",
    "api.evaluating": "aggregate benchmark export reverify",
    "api.runs": "Rollout Run compare load",
    "base_resources_server": (
        "BaseMultiRewardVerifyResponse BaseResourcesServer BaseResourcesServerConfig BaseRunRequest "
        "BaseSeedSessionRequest BaseSeedSessionResponse BaseVerifyRequest BaseVerifyResponse ReverifyMode "
        "SimpleResourcesServer"
    ),
    "base_responses_api_agent": "BaseResponsesAPIAgent BaseResponsesAPIAgentConfig Body SimpleResponsesAPIAgent",
    "base_responses_api_model": "BaseResponsesAPIModel BaseResponsesAPIModelConfig SimpleResponsesAPIModel",
    "config_types": "AgentServerRef EnvironmentServerRef ModelServerRef ResourcesServerRef",
    "config.locate": "_resolve_under_cwd_or_install",
    "global_config": "get_global_config_dict",
    "judge": "Judge JudgeConfig JudgeError call_judge judge_failsafe reraise_judge_errors",
    "openai_utils": (
        "NeMoGymAsyncOpenAI NeMoGymEasyInputMessage NeMoGymFunctionCallOutput NeMoGymResponse "
        "NeMoGymResponseCreateParamsNonStreaming NeMoGymResponseFunctionToolCall NeMoGymResponseOutputMessage "
        "NeMoGymResponseOutputText accumulate_response_usage"
    ),
    "reward_profile": "compute_pass_majority_metrics highest_k_metrics",
    "rollout_collection": "RolloutCollectionConfig RolloutCollectionHelper",
    "server_utils": "SESSION_ID_KEY ServerClient get_response_json raise_for_status",
}
_MODULE_OF: Final = {name: module for module, names in _EXPORTS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'nemo_gym' has no attribute {name!r}")
    return getattr(importlib.import_module(f"nemo_gym.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
