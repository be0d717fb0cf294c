"""The real model, loaded once for all tests; its weights are downloaded into the user's cache if necessary."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from responses_api_models.local_model.app import LocalModel, LocalModelConfig
from responses_api_models.local_model.model import ToolCallingModel
from responses_api_models.local_model.weights import SMOLLM2, cache_folder, ensure_weights

CALCULATOR = {
    "type": "function",
    "name": "calculator",
    "description": "Evaluates an arithmetic expression exactly.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "for example 3 * (4 + 5)", "maxLength": 30}},
        "required": ["expression"],
        "additionalProperties": False,
    },
}
QUESTION = {"role": "user", "content": "What is 55 plus 31?"}


def seeded(seed: int, **more: Any) -> dict[str, str]:
    return {"extra_body": json.dumps({"seed": seed, **more})}


async def ask(model: LocalModel, question: Any = "Say hi.", **options: Any) -> NeMoGymResponse:
    options = {"max_output_tokens": 24, "temperature": 0.0, **options}
    return await model.responses(NeMoGymResponseCreateParamsNonStreaming(input=question, **options))


def build_model(**settings: Any) -> LocalModel:
    # Threads of an engine wait for each other without sleeping, which takes time from the tests beside this one.
    settings = {"threads": 1, **settings}
    config = LocalModelConfig(host="", port=0, entrypoint="", name="policy_model", **settings)
    return LocalModel(config=config, server_client=ServerClient.detached())


def sharing(server: LocalModel, loaded: LocalModel) -> LocalModel:
    """Let a server use the engines of another, so that they are loaded once, and equal prompts are computed once."""
    config = server.config
    server._model = ToolCallingModel(
        loaded._model.pool,
        token_ids=config.return_token_id_information,
        max_calls=config.max_parallel_tool_calls,
        carries_tokens=config.on_policy_correction,
    )
    return server


@pytest.fixture(scope="session")
def weights() -> Path:
    return asyncio.run(ensure_weights(SMOLLM2, cache_folder(os.environ)))


@pytest.fixture(scope="session")
def model(training_model: LocalModel) -> LocalModel:
    return sharing(build_model(), training_model)


@pytest.fixture(scope="session")
def training_model(weights: Path) -> Iterator[LocalModel]:
    server = build_model(n_ctx=4096, n_parallel=2, engines=1, return_token_id_information=True)
    yield server
    asyncio.run(server._model.pool.close())


@pytest.fixture(scope="session")
def torn(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file that was cut off."""
    path = tmp_path_factory.mktemp("model") / "torn.gguf"
    path.write_bytes(weights.read_bytes()[:5_000_000])
    return path
