"""Required values: whatever is still ``???`` when all sources are merged."""

from collections.abc import Iterator
from typing import Any

from nemo_gym.config.keys import MISSING
from nemo_gym.config.locate import Locator
from nemo_gym.errors import ConfigMissingValuesError


def missing_keys(data: Any, key: str = "") -> Iterator[str]:
    """The dotted keys of all values that are ``???``."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from missing_keys(value, f"{key}.{name}" if key else str(name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from missing_keys(value, f"{key}[{index}]")
    elif data == MISSING:
        yield key


def check_missing(data: Any, *, locator: Locator) -> None:
    """Refuse a configuration in which required values are not set. One error lists all of them."""
    keys = list(missing_keys(data))
    if not keys:
        return
    noun = "value is" if len(keys) == 1 else "values are"
    lines = [f"{len(keys)} required {noun} not set (???):", *(f"  {locator.at(key)}{key}" for key in keys)]
    # an element of a list can't be set on its own
    settable = dict.fromkeys(key.partition("[")[0] for key in keys)
    examples = " ".join(f"++{key}=<value>" for key in list(settable)[:3])
    raise ConfigMissingValuesError("\n".join(lines), hint=f"set them in env.yaml or on the command line: {examples}")
