"""A Gym of real servers around a tiny model."""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym.config.parse import parse_config

ROOT = Path(__file__).parents[2]
TOKEN = "a-long-weights-token"
AGENT = "format_following_simple_agent"
CONFIGS = (
    "resources_servers/format_following/configs/format_following.yaml",
    "responses_api_models/local_model/configs/local_model.yaml",
)


def gym_config(model: Path, **settings: Any) -> DictConfig:
    server = "++policy_model.responses_api_models.local_model"
    settings = {"model_path": model, "n_ctx": 1024, "n_parallel": 2, "return_token_id_information": "true"} | settings
    overrides = [f"{server}.{name}={value}" for name, value in settings.items()]
    return parse_config([f"+config_paths=[{','.join(CONFIGS)}]", *overrides]).config


def short_tasks(count: int) -> list[dict[str, Any]]:
    """Tasks that a random model passes now and then: an answer without some letter."""
    check = {"kind": "excludes_letter", "letter": "e"}
    sampling = {"max_output_tokens": 8, "temperature": 1.0}
    return [
        {"responses_create_params": {"input": f"Write {n}.", **sampling}, "prompt": f"Write {n}.", "checks": [check]}
        for n in range(count)
    ]


def write_tasks(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps(task) + "\n" for task in short_tasks(count)))
    return path
