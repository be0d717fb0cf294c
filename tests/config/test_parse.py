from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.parse import ParsedConfig, check_parameters, parse_config
from nemo_gym.errors import ConfigError

Write = Callable[[str, Any], Path]
FIELDS = ("input_jsonl_fpath", "output_jsonl_fpath", "limit", "num_repeats", "responses_create_params")


@pytest.fixture
def checked(write: Write) -> Callable[..., ParsedConfig]:
    write(
        "gym.yaml",
        "template: {responses_api_models: {impl: {entrypoint: app.py, url: '${my_url}'}}}\n"
        "policy_model: ${inherit_from:template}\n"
        "free: 1\n",
    )

    def check(*overrides: str) -> ParsedConfig:
        parsed = parse_config(["+config_paths=[gym.yaml]", *overrides])
        check_parameters(parsed.given, fields=FIELDS, config=parsed.config, declared=parsed.declared)
        return parsed

    return check


@pytest.mark.parametrize(
    "override",
    [
        "+limit=3",
        "+responses_create_params.temperature=1",
        "+head_server={host: a, port: 1}",
        "+policy_api_key=x",
        "+h=true",
        "+my_url=http://x",
        "++policy_model.responses_api_models.impl.timeout=3",
        "++template.responses_api_models.impl.timeout=3",
        "++free=2",
        "+new={resources_servers: {impl: {entrypoint: app.py, domain: math}}}",
        "++_delete_key=free",
    ],
)
def test_keys_with_a_meaning_are_accepted(checked: Callable[..., ParsedConfig], override: str) -> None:
    checked(override)


def test_a_key_that_only_the_command_line_interpolates_is_accepted(write: Write) -> None:
    write("a.yaml", "x: 1\n")
    parsed = parse_config(["+config_paths=${my_paths}", "+my_paths=[a.yaml]"])
    check_parameters(parsed.given, fields=(), config=parsed.config, declared=parsed.declared)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("+num_repeat=2", "'num_repeats'"),
        ("+limt=2", "'limit'"),
        ("+output_jsonl=x", "'output_jsonl_fpath'"),
        ("++policy_modl.responses_api_models.impl.timeout=3", "'policy_model'"),
        ("+my_ulr=x", "'my_url'"),
        ("+policy_base_ulr=x", "'policy_base_url'"),
    ],
)
def test_a_misspelt_key_names_the_nearest_known_one(
    checked: Callable[..., ParsedConfig], override: str, meant: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(override)
    name = override.strip("+").partition("=")[0].partition(".")[0]
    assert str(caught.value).startswith(f"command line: unknown parameter '{name}'. Did you mean: {meant}")
    assert "this command takes: input_jsonl_fpath, limit, num_repeats" in str(caught.value.hint)
    assert f"${{{name}}}" in str(caught.value.hint)


def test_suggestions_are_not_hidden_behind_a_long_list(checked: Callable[..., ParsedConfig]) -> None:
    many = [f"parameter_{number}" for number in range(40)]
    with pytest.raises(ConfigError) as caught:
        check_parameters(["parametr_7"], fields=many, config=checked().config)
    assert "'parameter_7'" in str(caught.value)
    assert str(caught.value.hint).startswith("--help lists all parameters; ")


def test_all_unknown_keys_are_named_at_once(checked: Callable[..., ParsedConfig]) -> None:
    with pytest.raises(ConfigError) as caught:
        checked("+limt=2", "+zzzzzz=1")
    assert len(str(caught.value).splitlines()) == 2
    assert str(caught.value).endswith("unknown parameter 'zzzzzz'.")


def test_the_value_of_an_unknown_key_is_not_shown(checked: Callable[..., ParsedConfig]) -> None:
    with pytest.raises(ConfigError) as caught:
        checked("+polcy_api_key=hunter2")
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
