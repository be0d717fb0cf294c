"""Models by name, as Python and ``--model`` take them.

    local                      the embedded model, which needs no key
    openai:NAME                OpenAI's endpoint, or any that speaks its protocol at ``base_url``
    anthropic:NAME, vllm:NAME  likewise
    NAME                       a model server's folder, such as ``replay_model``

Keys are taken from ``api_key``, the provider's usual variable, or ``policy_api_key`` in ``env.yaml``.
"""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from nemo_gym.config.keys import (
    ENV_FILE_NAME,
    POLICY_API_KEY,
    POLICY_BASE_URL,
    POLICY_MODEL,
    POLICY_MODEL_NAME,
    RESPONSES_API_MODELS,
)
from nemo_gym.config.locate import find_readable
from nemo_gym.config.short_names import find_configuration
from nemo_gym.config.sources import load_yaml
from nemo_gym.errors import ConfigError, did_you_mean


class Provider(NamedTuple):
    """A kind of endpoint: its model server, where it is, and the variables that people set for it."""

    server: str
    base_url: str
    key_variable: str
    url_variable: str
    key: str | None = None  # if it needs none


PROVIDERS: Final = {
    "openai": Provider("openai_model", "https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "anthropic": Provider("anthropic_model", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "vllm": Provider("vllm_model", "http://127.0.0.1:8000/v1", "VLLM_API_KEY", "VLLM_BASE_URL", key="none"),
}
LOCAL: Final = "local"


class NamedModel(NamedTuple):
    """A model that was chosen by name: the file that describes its server, and keys of the configuration."""

    config_path: str
    values: dict[str, Any]


def is_model_name(text: str) -> bool:
    """Whether a text names a model in this notation, rather than only the name that an endpoint knows it by.

    Endpoints have names with a colon, too (``llama3:8b``). Only what almost names a provider is taken for a typo.
    """
    kind, colon, _ = text.partition(":")
    return text == LOCAL or bool(colon and get_close_matches(kind, PROVIDERS, cutoff=0.8))


def named_model(
    model: str, *, base_url: str | None = None, api_key: str | None = None, settings: Mapping[str, Any] | None = None
) -> NamedModel:
    """The configuration of a model; ``settings`` are added to those of its server."""
    kind, _, name = model.partition(":")
    values: dict[str, Any] = {}
    if provider := PROVIDERS.get(kind):
        if not name:
            raise ConfigError(f"{model!r} names no model", hint=f"write {kind}:NAME")
        url = base_url or os.environ.get(provider.url_variable) or provider.base_url
        values = {POLICY_BASE_URL: url, POLICY_API_KEY: _key(model, provider, api_key), POLICY_MODEL_NAME: name}
    else:
        given = {POLICY_BASE_URL: base_url, POLICY_API_KEY: api_key}
        values = {key: value for key, value in given.items() if value}
        if ":" in model:
            known = did_you_mean(kind, PROVIDERS, available="Kinds of models")
            raise ConfigError(f"{model!r}: there is no kind of model {kind!r}", hint=known)
    server = provider.server if provider else f"{LOCAL}_model" if model == LOCAL else model
    if settings:
        values[POLICY_MODEL] = {RESPONSES_API_MODELS: {server: dict(settings)}}
    try:
        path = find_configuration(RESPONSES_API_MODELS, server)
    except ConfigError as error:
        endpoints = " or ".join(f"{each}:{model}" for each in PROVIDERS)
        raise ConfigError(str(error), hint=f"for a model of an endpoint, write {endpoints}. {error.hint}") from None
    return NamedModel(path, values)


def _key(model: str, provider: Provider, given: str | None) -> str:
    key = given or os.environ.get(provider.key_variable)
    if not key and (path := find_readable(ENV_FILE_NAME)):
        key = load_yaml(path, label=ENV_FILE_NAME).get(POLICY_API_KEY)
    if not (key or provider.key):
        raise ConfigError(
            f"{model} needs a key, and none is set",
            hint=f"set {provider.key_variable}, give one with api_key= (--model-api-key), or write {POLICY_API_KEY}: … "
            f"into {ENV_FILE_NAME}",
        )
    return str(key or provider.key)
