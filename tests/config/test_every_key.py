"""Every documented setting changes something, or is refused. None is accepted and ignored."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from nemo_gym import PARENT_DIR
from nemo_gym.cli.commands import COMMANDS
from nemo_gym.config.keys import COMMAND_KEYS, GLOBAL_KEYS, UNUSED_KEYS
from nemo_gym.config.parse import check_parameters, parse_config
from nemo_gym.config.servers import ResourcesServerSettings
from nemo_gym.errors import ConfigError
from nemo_gym.servers.loader import read_settings_of
from responses_api_agents.simple_agent.app import SimpleAgent

TESTS = PARENT_DIR / "tests"
# The test that shows what a key does; its text names the key.
SHOWN = {
    "config_paths": "config/test_sources.py",
    "head_server": "servers/test_gym.py",
    "default_host": "config/test_addresses.py",
    "use_absolute_ip": "config/test_addresses.py",
    "port_range_low": "config/test_addresses.py",
    "port_range_high": "config/test_addresses.py",
    "disallowed_ports": "config/test_addresses.py",
    "error_on_almost_servers": "config/test_servers.py",
    "error_on_agent_without_environment_server": "config/test_environments.py",
    "allow_unsupported_pairing": "config/test_environments.py",
    "skip_verification": "config/test_environments.py",
    "skip_verification_reward": "config/test_environments.py",
    "results_dir": "config/test_environments.py",
    "environment_server_name": "test_newer_folders.py",
    "environment_server_routes": "rollouts/test_plan.py",
    "environment_routing_mode": "test_newer_folders.py",
    "observability_enabled": "servers/test_agent_sessions.py",
    "model_call_capture_dir": "capture/test_recorded_calls.py",
    "dry_run": "cli/test_hosting.py",
    "nemo_gym_log_dir": "servers/test_gym.py",
    "verbose": "cli/test_hosting.py",
    "policy_base_url": "cli/test_configuration.py",
    "policy_api_key": "cli/test_configuration.py",
    "policy_model_name": "cli/test_configuration.py",
    "hf_token": "config/test_global_config.py",
    "wandb_project": "config/test_global_config.py",
    "wandb_name": "config/test_global_config.py",
    "wandb_api_key": "config/test_global_config.py",
    "global_aiohttp_connector_limit": "servers/http",
    "global_aiohttp_connector_limit_per_host": "servers/http",
    "max_answer_bytes": "servers/http",
    "serve_token": "servers/test_callers.py",
    "allowed_hosts": "servers/test_callers.py",
    "global_aiohttp_client_request_debug": "rollouts/test_rollout_collection.py",
    "uvicorn_logging_show_200_ok": "servers/test_gym.py",
    "skip_venv_if_present": "servers/test_venvs.py",
    "uv_venv_dir": "servers/test_gym.py",
    "uv_cache_dir": "servers/test_venvs.py",
    "pip_install_verbose": "servers/test_venvs.py",
    "python_version": "servers/test_venvs.py",
    "head_server_deps": "servers/test_venvs.py",
    "_inherit_from": "config/test_directives.py",
    "_copy": "config/test_directives.py",
    "_delete_key": "config/test_directives.py",
    "help": "cli/test_main.py",
    "h": "cli/test_main.py",
}
# What always happens, so that there is nothing to change.
ALWAYS = {"uv_pip_set_python"}
# Built by other parts, with tests of their own.
ELSEWHERE = {"ray_head_node_address", "profiling_enabled", "profiling_results_dirpath"}


def test_every_global_key_is_shown_to_do_something_or_refused() -> None:
    assert set(SHOWN) | ALWAYS | ELSEWHERE | COMMAND_KEYS | UNUSED_KEYS == GLOBAL_KEYS


@pytest.mark.parametrize("key", sorted(SHOWN))
def test_a_test_names_the_key(key: str) -> None:
    place = TESTS / SHOWN[key]
    texts = [path.read_text("utf-8") for path in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]
    assert any(re.search(rf"(?<![\w-]){re.escape(key)}\b", text) for text in texts)


@pytest.mark.parametrize("key", sorted(COMMAND_KEYS | UNUSED_KEYS))
def test_keys_without_a_meaning_are_refused(key: str) -> None:
    config = parse_config([]).config
    with pytest.raises(ConfigError, match=f"unknown parameter '{key}'"):
        check_parameters([key], fields={"limit"}, config=config)
    check_parameters([key], fields={key}, config=config)
    check_parameters([key], fields=set(), config=config, declared={key})  # env.yaml may hold it for other programs


SETTINGS = {
    "host": "127.0.0.1",
    "port": 1,
    "entrypoint": "app.py",
    "name": "agent",
    "resources_server": {"type": "resources_servers", "name": "tools"},
    "model_server": {"type": "responses_api_models", "name": "model"},
}


@pytest.mark.parametrize(("key", "meant"), [("max_stepz", "max_steps"), ("num_worker", "num_workers")])
def test_a_misspelt_setting_of_a_server_is_refused_by_the_nearest_name(key: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: not a setting of SimpleAgentConfig.*did you mean '{meant}'"):
        read_settings_of(SimpleAgent, {**SETTINGS, key: 3}, where="agent")


def test_settings_for_other_programs_are_told_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    read_settings_of(SimpleAgent, {**SETTINGS, "colour": "blue"}, where="agent")
    assert "colour: not a setting of SimpleAgentConfig, so it has no effect" in caplog.text


# ---- parameters of commands and settings of servers ------------------------------------------------------------------
def names_read(source: str) -> Iterator[str]:
    """What a module reads: attributes, and keys given as text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield str(node.slice.value)
        elif isinstance(node, ast.Call):
            yield from (str(one.value) for one in node.args if isinstance(one, ast.Constant))


@cache
def read_in(folder: Path) -> frozenset[str]:
    files = [path for path in folder.rglob("*.py") if "tests" not in path.relative_to(folder).parts]
    return frozenset(name for path in files for name in names_read(path.read_text("utf-8")))


def parameters() -> Iterator[tuple[str, str]]:
    for command in COMMANDS:
        if command.parameters:
            module, _, name = command.parameters.partition(":")
            fields: dict[str, object] = getattr(importlib.import_module(module), name).model_fields
            yield from ((command.name, field) for field in fields)


def test_every_parameter_of_a_command_is_read_somewhere() -> None:
    known = read_in(PARENT_DIR / "nemo_gym")
    assert not [(command, field) for command, field in parameters() if field not in known | GLOBAL_KEYS]


def settings_classes() -> Iterator[tuple[Path, type[BaseModel]]]:
    for path in sorted(PARENT_DIR.glob("res*/*/app.py")):
        if not path.parent.parent.name.startswith(("resources_servers", "responses_api_")):
            continue
        try:
            module = importlib.import_module(".".join(path.relative_to(PARENT_DIR).with_suffix("").parts))
        except ImportError:  # needs packages that are not here
            continue
        for _, found in inspect.getmembers(module, inspect.isclass):
            if (
                issubclass(found, BaseModel)
                and found.__name__.endswith("Config")
                and found.__module__ == module.__name__
            ):
                yield path.parent, found


def read_in_bases(folder: Path, settings: type[BaseModel]) -> frozenset[str]:
    """What a server's folder reads, and the folders of the servers whose settings it inherits."""
    bases = (
        Path(inspect.getfile(kind)).parent for kind in settings.__mro__ if kind.__module__.startswith("resources_")
    )
    return frozenset().union(*map(read_in, {folder, *bases}))


def test_every_setting_of_a_server_is_read_somewhere() -> None:
    common = read_in(PARENT_DIR / "nemo_gym") | read_in(PARENT_DIR / "responses_api_agents" / "simple_agent")
    ignored = [
        f"{folder.name}: {name}"
        for folder, settings in settings_classes()
        for name in settings.model_fields
        if name not in ResourcesServerSettings.model_fields and name not in common | read_in_bases(folder, settings)
    ]
    assert not ignored
