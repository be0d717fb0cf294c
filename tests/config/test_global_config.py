"""The front door: one configuration per process."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym import PARENT_DIR, global_config
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import (
    DictConfig,
    GlobalConfigDictParser,
    GlobalConfigDictParserConfig,
    OmegaConf,
    get_first_server_config_dict,
    get_global_config_dict,
    get_hf_token,
    get_wandb_run,
    reset_global_config,
    set_global_config_dict,
)

Write = Callable[[str, Any], Path]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", ["ng_run"])
    monkeypatch.delenv("NEMO_GYM_CONFIG_DICT", raising=False)
    reset_global_config()
    yield
    reset_global_config()


def test_everything_that_is_promised_can_be_imported() -> None:
    for name in global_config.__all__:
        assert getattr(global_config, name) is not None


def test_the_configuration_is_built_once_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ng_run", "+limit=3"])
    config = get_global_config_dict()
    assert config.limit == 3
    monkeypatch.setattr(sys, "argv", ["ng_run", "+limit=4"])
    assert get_global_config_dict() is config
    reset_global_config()
    assert get_global_config_dict().limit == 4


def test_env_yaml_here_is_read(write: Write) -> None:
    write("env.yaml", "hf_token: hf_x\n")
    assert get_hf_token() == "hf_x"


def test_no_token_is_none() -> None:
    set_global_config_dict(OmegaConf.create({}))
    assert get_hf_token() is None


def test_the_caller_chooses_the_sources(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ng_run", "+command=1"])
    write("env.yaml", "env: 1\n")
    write("other.yaml", "other: 1\n")

    def keys(**wanted: Any) -> set[str]:
        config = GlobalConfigDictParser().parse(GlobalConfigDictParserConfig(**wanted))
        return set(config) & {"command", "env", "other", "caller", "explicit"}

    assert keys() == {"command", "env"}
    assert keys(skip_load_from_cli=True) == {"env"}
    assert keys(skip_load_from_dotenv=True) == {"command"}
    assert keys(dotenv_path=Path("other.yaml")) == {"command", "other"}
    assert keys(dotenv_path=Path("absent.yaml")) == {"command"}
    assert keys(initial_global_config_dict={"caller": 1}) == {"command", "env", "caller"}
    assert keys(overrides=["+explicit=1"]) == {"env", "explicit"}


def test_a_ready_made_configuration_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["app.py", "--not-an-override"])
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", "a: ???\nb: ${c}\nc: 1\nconfig_paths: nonsense\n")
    config = get_global_config_dict()
    assert OmegaConf.to_container(config) == {"a": "???", "b": "${c}", "c": 1, "config_paths": "nonsense"}
    assert config.b == 1


def test_an_empty_variable_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", "")
    assert get_global_config_dict().head_server.port == 11000


@pytest.mark.parametrize("text", ["[1, 2]", "a: b: hunter2", "a: ${hunter2"])
def test_a_broken_ready_made_configuration_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", text)
    with pytest.raises(ConfigError) as caught:
        get_global_config_dict()
    assert str(caught.value) == "environment variable NEMO_GYM_CONFIG_DICT: not a YAML mapping"
    assert "hunter2" not in str(caught.value.hint)


def test_a_parsed_configuration_survives_the_way_to_a_child(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("env.yaml", "policy_api_key: sk-1\n")
    server = {"m": {"responses_api_models": {"x": {"entrypoint": "app.py", "k": "${policy_api_key}", "v": "1e3"}}}}
    config = get_global_config_dict(GlobalConfigDictParserConfig(initial_global_config_dict=server))
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", OmegaConf.to_yaml(config))
    reset_global_config()
    assert get_global_config_dict() == config
    assert get_global_config_dict().m.responses_api_models.x.v == "1e3"


def test_secrets_can_be_hidden_without_losing_them() -> None:
    wanted = GlobalConfigDictParserConfig(hide_secrets=True, initial_global_config_dict={"policy_api_key": "hunter2"})
    assert get_global_config_dict(wanted).policy_api_key == "****"
    assert get_global_config_dict().policy_api_key == "hunter2"
    assert GlobalConfigDictParser().parse(wanted).policy_api_key == "****"


def test_the_dummy_model_of_commands_without_one_cant_be_changed_by_accident() -> None:
    before = OmegaConf.to_yaml(GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT)
    parser_config = GlobalConfigDictParserConfig(
        initial_global_config_dict=GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
    )
    config = GlobalConfigDictParser().parse(parser_config)
    config.policy_model.responses_api_models.dummy_model.port = 1
    assert OmegaConf.to_yaml(GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT) == before


CONFIG: DictConfig = OmegaConf.create(
    {
        "free": 1,
        "my_agent": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "max_steps": "${free}"}}},
        "unusual": {"kind": {"implementation": {"x": 1}}},
    }
)


def test_the_settings_of_a_server_are_found_by_its_name() -> None:
    assert get_first_server_config_dict(CONFIG, "my_agent").max_steps == 1
    assert get_first_server_config_dict(CONFIG, "unusual") == {"x": 1}


def test_an_unknown_server_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"no server 'my_agnt'\. Did you mean: 'my_agent'\?"):
        get_first_server_config_dict(CONFIG, "my_agnt")
    with pytest.raises(ConfigError, match="Available servers: 'my_agent'"):
        get_first_server_config_dict(CONFIG, "free")


WANDB = {"wandb_project": "p", "wandb_name": "n", "wandb_api_key": "k"}


@pytest.mark.parametrize(
    "change", [{"wandb_project": None}, {"wandb_name": None}, {"wandb_api_key": None}, {"wandb_api_key": "****"}]
)
def test_a_tracker_needs_all_its_keys(change: dict[str, Any]) -> None:
    set_global_config_dict(OmegaConf.create({**WANDB, **change}))
    assert get_wandb_run() is None


def test_a_tracker_that_is_not_installed_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    set_global_config_dict(OmegaConf.create(WANDB))
    with pytest.raises(ConfigError, match="wandb is not installed") as caught:
        get_wandb_run()
    assert "pip install wandb" in str(caught.value.hint)


def test_the_tracker_gets_the_masked_configuration(write: Write, work_dir: Path) -> None:
    write("wandb.py", "run = None\ndef init(**arguments):\n    return arguments\n")
    write("pyproject.toml", "")
    script = (
        "import json, os, nemo_gym\n"
        "os.environ.pop('WANDB_DIR', None)\n"
        "from nemo_gym import global_config\n"
        f"global_config.set_global_config_dict(global_config.OmegaConf.create({WANDB!r}))\n"
        "print(json.dumps(global_config.get_wandb_run()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=work_dir)
    assert json.loads(done.stdout) == {
        "project": "p",
        "name": "n",
        "dir": str(work_dir / "results" / "wandb"),
        "config": {**WANDB, "wandb_api_key": "****"},
    }


def test_importing_loads_nothing_heavy() -> None:
    script = "import sys, nemo_gym.global_config; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=PARENT_DIR)
    heavy = {"hydra", "ray", "pandas", "wandb", "torch", "datasets", "openai", "fastapi", "aiohttp", "numpy"}
    assert heavy.isdisjoint(done.stdout.split())
