"""The real model, loaded once for all tests; its weights are fetched into the user's cache if they are not there."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from nemo_gym.server_utils import ServerClient
from responses_api_models.local_model.app import LocalModel, LocalModelConfig
from responses_api_models.local_model.weights import SMOLLM2, cache_folder, ensure_weights


def build_model(**settings: Any) -> LocalModel:
    config = LocalModelConfig(host="", port=0, entrypoint="", name="policy_model", **settings)
    return LocalModel(config=config, server_client=MagicMock(spec=ServerClient))


@pytest.fixture(scope="session")
def weights() -> Path:
    return asyncio.run(ensure_weights(SMOLLM2, cache_folder(os.environ)))


@pytest.fixture(scope="session")
def model(weights: Path) -> Iterator[LocalModel]:
    server = build_model(n_ctx=4096)
    yield server
    server._model.pool.close()


@pytest.fixture(scope="session")
def training_model(weights: Path) -> Iterator[LocalModel]:
    server = build_model(n_ctx=4096, n_parallel=2, engines=1, return_token_id_information=True)
    yield server
    server._model.pool.close()
