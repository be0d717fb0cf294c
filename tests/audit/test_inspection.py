"""What would stop a server, or quietly have no effect, is found before anything runs."""

import shutil
from pathlib import Path

import pytest

from nemo_gym.audit.findings import Finding, examine
from nemo_gym.audit.inspection import CONFIGURATION_CHECKS, FOLDER_CHECKS
from nemo_gym.config.parse import parse_config
from nemo_gym.errors import AlmostServerError, ConfigError

FOREIGN = Path(__file__).parents[1] / "foreign"
AGENT = "++word_agent.responses_api_agents.careful_agent"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(FOREIGN, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*overrides: str) -> dict[str, str]:
    model = "responses_api_models/openai_model/configs/openai_model.yaml"
    endpoint = ["+policy_base_url=http://127.0.0.1:1/v1", "+policy_api_key=k", "+policy_model_name=m"]
    config = parse_config([f"+config_paths=[config.yaml,{model}]", *endpoint, *overrides]).config
    return {finding.place: str(finding) for finding in examine(config, CONFIGURATION_CHECKS)}


def test_a_sound_configuration_has_no_findings(project: Path) -> None:
    assert found() == {}


def test_a_missing_folder_and_a_setting_that_does_not_fit_are_found(project: Path) -> None:
    shutil.move("resources_servers/letter_ledger", "resources_servers/letter_ledgers")
    findings = found(f"{AGENT}.model_server=policy_model")
    assert "did you mean 'letter_ledgers'?" in findings["letter_ledger"]
    assert "model_server" in findings["word_agent"]


def test_a_misspelt_server_type_is_named_even_if_nobody_refers_to_it(project: Path) -> None:
    with pytest.raises(AlmostServerError, match="'resource_servers' is not a server type") as caught:
        found("+lonely.resource_servers.word_ledger={entrypoint: app.py, domain: other}")
    assert "resources_servers" in (caught.value.hint or "")


def test_a_misspelt_key_is_found_and_named_with_the_nearest_one(project: Path) -> None:
    assert "did you mean 'model_server'?" in found(f"{AGENT}.model_servers=x")["word_agent"]


@pytest.mark.parametrize(
    "override",
    [
        "++word_ledger.resources_servers.word_ledger.entrypoint=../letter_ledger/app.py",
        "++word_ledger.resources_servers.word_ledger.entrypoint=/tmp/app.py",
        "+evil.resources_servers={../../elsewhere: {entrypoint: app.py, domain: other}}",
    ],
)
def test_a_configuration_cannot_leave_the_server_folders(project: Path, override: str) -> None:
    with pytest.raises(ConfigError, match="points outside the server folders"):
        found(override)


def test_a_foreign_folder_is_read_without_being_imported(project: Path) -> None:
    folder = project / "resources_servers" / "word_ledger"
    (folder / "odd.py").write_text(
        "import no_such_package_at_all\nfrom nemo_gym.judge import call_judges\nDATA = '../letter_ledger/letters.txt'\n"
        "raise SystemExit('imported')\n"
    )
    (folder / "odd.yaml").write_text("x:\n  resource_server:\n    y: {entrypoint: app.py}\n")
    (folder / "requirements.txt").write_text("no-such-package-at-all>=3\n")
    assert examine(folder, FOLDER_CHECKS) == [
        Finding("warning", "requirements.txt", "no-such-package-at-all>=3 is not met here"),
        Finding("error", "odd.py:1", "the package 'no_such_package_at_all' is not installed"),
        Finding("error", "odd.py:2", "nemo_gym.judge has no 'call_judges'", "did you mean 'call_judge'?"),
        Finding("warning", "odd.py:3", "names a file outside the folder: '../letter_ledger/letters.txt'"),
        Finding("error", "odd.yaml", "x.resource_server is not a type of server", "did you mean 'resources_servers'?"),
    ]
