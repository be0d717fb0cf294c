from pathlib import Path

import pytest
import yaml

SERVERS = """\
maths:
  resources_servers:
    maths:
      entrypoint: app.py
      domain: math
maths_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: maths}
      model_server: {type: responses_api_models, name: policy_model}
"""
APP = """\
from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer


class Maths(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


if __name__ == "__main__":
    Maths.run_webserver()
"""
MODEL = """\
policy_model:
  responses_api_models:
    openai_model:
      entrypoint: app.py
      openai_base_url: ${policy_base_url}
      openai_api_key: ${policy_api_key}
"""
ENV = "policy_base_url: http://127.0.0.1:1/v1\npolicy_api_key: sk-0123456789\n"


@pytest.fixture
def configured(workspace):
    (workspace / "servers.yaml").write_text(SERVERS)
    folder = workspace / "resources_servers" / "maths"
    folder.mkdir(parents=True)
    (folder / "requirements.txt").touch()
    (folder / "app.py").write_text(APP)
    (workspace / "model.yaml").write_text(MODEL)
    (workspace / "env.yaml").write_text(ENV)
    return workspace


def test_the_dump_is_resolved_yaml_without_secrets(run, configured):
    ran = run("ng_dump_config", "+config_paths=[servers.yaml,model.yaml]", "+anything=1")
    assert (ran.code, ran.err) == (0, "")
    config = yaml.safe_load(ran.out)
    model = config["policy_model"]["responses_api_models"]["openai_model"]
    assert model["openai_base_url"] == "http://127.0.0.1:1/v1"
    assert model["openai_api_key"] == "****"
    assert config["policy_api_key"] == "****"
    assert config["anything"] == 1
    assert "sk-0123456789" not in ran.out


def test_a_valid_configuration_says_so_and_needs_no_model(run, configured):
    ran = run("ng_validate", "+config_paths=[servers.yaml]")
    assert (ran.code, ran.out) == (0, "✓ Config is valid.\n")
    assert ran.err == "servers: maths, maths_agent\n"


def test_flags_and_overrides_mean_the_same(run, configured):
    by_override = run("ng_dump_config", "+config_paths=[model.yaml]", "+policy_model_name=x", "++default_host=h")
    by_flag = run("ng", "env", "resolve", "--config", "model.yaml", "--model", "x", "++default_host=h")
    assert by_flag.code == by_override.code == 0
    without_ports = [
        {line for line in ran.out.splitlines() if "port" not in line and not line.startswith("- 1")}
        for ran in (by_override, by_flag)
    ]
    assert without_ports[0] == without_ports[1]


def test_a_mistake_in_a_file_names_file_line_and_fix(run, configured):
    Path("servers.yaml").write_text(SERVERS.replace("name: maths}", "name: math}"))
    ran = run("ng_validate", "+config_paths=[servers.yaml]")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: servers.yaml:10: ")
    assert "'maths'" in ran.err
    assert "\n\nhint: " in ran.err
    assert "Traceback" not in ran.err


def test_a_missing_file_is_a_configuration_error(run):
    ran = run("ng_validate", "+config_paths=[nowhere.yaml]")
    assert ran.code == 1
    assert "'nowhere.yaml' does not exist" in ran.err


def test_malformed_yaml_is_shown_with_line_and_column(run, configured):
    Path("servers.yaml").write_text("a: [\n")
    ran = run("ng_validate", "+config_paths=[servers.yaml]")
    assert ran.code == 1
    assert "error: servers.yaml:2:1: malformed YAML" in ran.err


def test_an_unknown_parameter_is_a_usage_error(run, configured):
    ran = run("ng_validate", "+config_paths=[servers.yaml]", "+default_hsot=x")
    assert ran.code == 2
    assert "unknown parameter 'default_hsot'. Did you mean: 'default_host'?" in ran.err


def test_a_key_that_a_file_interpolates_is_no_unknown_parameter(run, configured):
    Path("servers.yaml").write_text(SERVERS.replace("domain: math", "domain: ${my_domain}"))
    assert run("ng_validate", "+config_paths=[servers.yaml]", "+my_domain=math").code == 0


def test_parameters_may_stand_in_env_yaml(run, workspace):
    (workspace / "env.yaml").write_text("json: true\n")
    assert run("ng_list_benchmarks", "+query=nothing-like-it").out == "[]\n"
