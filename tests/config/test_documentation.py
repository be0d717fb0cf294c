from typing import get_args

import pytest

from nemo_gym import PARENT_DIR, errors
from nemo_gym.config.datasets import License
from nemo_gym.config.keys import GLOBAL_KEYS
from nemo_gym.config.servers import ResourcesServerSettings
from nemo_gym.schemas.refs import Domain

TEXT = (PARENT_DIR / "docs" / "configuration.md").read_text("utf-8")


@pytest.mark.parametrize("key", sorted(GLOBAL_KEYS - {"h", "help"}))
def test_every_global_key_is_documented(key: str) -> None:
    assert f"`{key}`" in TEXT


@pytest.mark.parametrize("word", [*ResourcesServerSettings.model_fields, *Domain, *get_args(License)])
def test_every_field_domain_and_licence_is_documented(word: str) -> None:
    assert f"`{word}`" in TEXT


@pytest.mark.parametrize("name", [name for name in vars(errors) if name.endswith("Error") and name != "RolloutError"])
def test_every_error_is_documented(name: str) -> None:
    assert f"`{name}`" in TEXT
