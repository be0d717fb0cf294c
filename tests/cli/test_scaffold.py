from pathlib import Path

import pytest
import yaml


def test_a_new_resources_server_has_all_its_files(run):
    ran = run("ng_init_resources_server", "+entrypoint=resources_servers/my_thing")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("created resources_servers/my_thing\n\nnext: ")
    folder = Path("resources_servers/my_thing")
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "app.py",
        "configs/my_thing.yaml",
        "tests/test_app.py",
        "requirements.txt",
        "README.md",
        "data/.gitignore",
    }
    assert "class MyThingResourcesServer(SimpleResourcesServer)" in (folder / "app.py").read_text()
    assert {path.name for path in folder.parent.iterdir()} == {"my_thing"}


def test_its_configuration_names_server_agent_and_datasets(run):
    run("ng", "env", "init", "--resources-server", "my_thing")
    config = yaml.safe_load(Path("resources_servers/my_thing/configs/my_thing.yaml").read_text())
    server = config["my_thing_resources_server"]["resources_servers"]["my_thing"]
    agent = config["my_thing_simple_agent"]["responses_api_agents"]["simple_agent"]
    assert server == {"entrypoint": "app.py", "domain": "other", "verified": False}
    assert agent["resources_server"] == {"type": "resources_servers", "name": "my_thing_resources_server"}
    assert agent["model_server"] == {"type": "responses_api_models", "name": "policy_model"}
    assert [dataset["type"] for dataset in agent["datasets"]] == ["train", "validation", "example"]


def test_an_existing_folder_is_left_alone(run):
    existing = Path("resources_servers/my_thing/app.py")
    existing.parent.mkdir(parents=True)
    existing.write_text("mine")
    ran = run("ng_init_resources_server", "+entrypoint=resources_servers/my_thing")
    assert (ran.code, ran.err) == (0, "resources_servers/my_thing already exists; nothing was changed\n")
    assert existing.read_text() == "mine"
    assert list(existing.parent.iterdir()) == [existing]


@pytest.mark.parametrize(
    "entrypoint", ["my_thing", "resources_servers/My-Thing", "responses_api_agents/x", "resources_servers/a/b"]
)
def test_an_unusable_name_is_explained(run, entrypoint):
    ran = run("ng_init_resources_server", f"+entrypoint={entrypoint}")
    assert ran.code == 2
    assert f"error: entrypoint '{entrypoint}' is not resources_servers/<name>" in ran.err
    assert "hint: for example: +entrypoint=resources_servers/my_thing" in ran.err


def test_the_generated_tests_pass(spawn, workspace):
    spawn("ng_init_resources_server", "+entrypoint=resources_servers/my_thing")
    ran = spawn("ng_test", "+entrypoint=resources_servers/my_thing")
    assert ran.code == 0, ran.out + ran.err
    assert "1 passed" in ran.out
