"""Keeps credentials out of everything that people read: dumps, logs, error messages.

Whether a value is masked depends on its key. Values of keys that certainly hold a credential are also masked wherever
else they occur, because ``${policy_api_key}`` may be interpolated into an innocent-looking string.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.interpolation import plain_data

MASK: Final = "****"

_SUSPECT: Final = ("token", "key", "secret", "password", "passwd", "credential", "authorization")
_CREDENTIAL: Final = re.compile(r"(api_?key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
_URL_PASSWORD: Final = re.compile(r"(://[^/@\s:]*:)[^/@\s]+@")
# Shorter values are not credentials, and masking every "none" or "empty" would make the dump useless.
_SHORTEST_CREDENTIAL: Final = 8


def is_secret_key(key: str) -> bool:
    """Whether values under this key are never shown."""
    lowered = key.lower()
    return any(word in lowered for word in _SUSPECT)


def is_credential_key(key: str) -> bool:
    """Whether values under this key certainly are credentials; ``max_tokens`` is not such a key."""
    return _CREDENTIAL.search(key) is not None


def mask_secrets(data: Any) -> Any:
    """A copy of plain data (dicts, lists, scalars) in which every secret is replaced by asterisks."""
    # The longest first, because a credential may be part of a longer one.
    found = sorted(set(_credentials(data)), key=len, reverse=True)
    return _mask(data, re.compile("|".join(map(re.escape, found))) if found else None)


def masked_yaml(config: DictConfig) -> str:
    """The configuration as YAML to be read: interpolations resolved where possible, secrets masked."""
    return OmegaConf.to_yaml(OmegaConf.create(mask_secrets(plain_data(config))))


def _mask(data: Any, credentials: re.Pattern[str] | None, *, secret: bool = False) -> Any:
    if isinstance(data, dict):
        return {key: _mask(value, credentials, secret=is_secret_key(str(key))) for key, value in data.items()}
    if isinstance(data, list):
        return [_mask(value, credentials, secret=secret) for value in data]
    if secret:
        return MASK
    if isinstance(data, str):
        text = credentials.sub(MASK, data) if credentials else data
        return _URL_PASSWORD.sub(rf"\1{MASK}@", text)
    return data


def _credentials(data: Any, key: str = "") -> Iterator[str]:
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _credentials(value, str(name))
    elif isinstance(data, list):
        for value in data:
            yield from _credentials(value, key)
    elif isinstance(data, str) and len(data) >= _SHORTEST_CREDENTIAL and _CREDENTIAL.search(key) and "${" not in data:
        yield data
