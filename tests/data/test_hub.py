"""Files of the hub, fetched by its own library from a stand-in of the hub."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_gym.data.hub import HubFile, fetch_hub_file, fetch_rows, list_hub_files, read_rows, write_rows
from nemo_gym.errors import ConfigError
from tests.data.hub_server import Hub, serving

CONTENT = b"".join(json.dumps({"question": f"q{number}", "text": "x" * 100}).encode() + b"\n" for number in range(2000))
FILE = HubFile("owner/name", "data/test.jsonl", rows=2000)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="pip install 'rollout-gym[data]'")
    with serving(Hub({"owner/name/data/test.jsonl": CONTENT})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("ROLLOUT_GYM_HUB_FOLDER", raising=False)
        yield hub


@pytest.mark.parametrize("large", [True, False], ids=["in storage", "in Git"])
def test_a_file_is_fetched_once(hub: Hub, large: bool) -> None:
    hub.large = large
    assert fetch_hub_file(FILE.repo_id, FILE.path).read_bytes() == CONTENT
    gets = len(hub.gets)
    assert len(fetch_rows(FILE)) == 2000
    assert len(hub.gets) == gets


def test_a_transfer_that_breaks_off_is_tried_again(hub: Hub) -> None:
    hub.faults = ["cut"]
    assert fetch_hub_file(FILE.repo_id, FILE.path).read_bytes() == CONTENT
    assert hub.faults == []


def test_a_private_file_needs_a_token(hub: Hub) -> None:
    hub.token = "secret"
    with pytest.raises(ConfigError, match=r"could not download owner/name/data/test\.jsonl") as caught:
        fetch_hub_file(FILE.repo_id, FILE.path)
    assert "HF_TOKEN" in (caught.value.hint or "")
    assert fetch_hub_file(FILE.repo_id, FILE.path, token="secret").read_bytes() == CONTENT


def test_a_file_that_is_not_there_is_named(hub: Hub) -> None:
    with pytest.raises(ConfigError, match=r"could not download owner/name/none\.csv \(revision main\): .*Not Found"):
        fetch_hub_file("owner/name", "none.csv")


def test_files_are_listed(hub: Hub) -> None:
    assert list_hub_files("owner/name") == ["data/test.jsonl"]
    with pytest.raises(ConfigError, match="could not list the files of owner/other"):
        list_hub_files("owner/other")


def test_another_number_of_rows_is_an_error(hub: Hub) -> None:
    with pytest.raises(ConfigError, match="has 2000 rows, not 1999"):
        fetch_rows(HubFile("owner/name", "data/test.jsonl", rows=1999))


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLOUT_GYM_HUB_FOLDER", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match="needs the library 'huggingface_hub'") as caught:
        fetch_hub_file(FILE.repo_id, FILE.path)
    assert caught.value.hint == "pip install 'rollout-gym[data]'"


def test_a_local_folder_stands_in_for_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_GYM_HUB_FOLDER", str(tmp_path))
    with pytest.raises(ConfigError, match="no such file"):
        fetch_hub_file(FILE.repo_id, FILE.path)
    path = tmp_path / "owner/name/data/test.jsonl"
    write_rows([{"a": "ä"}], path)
    assert fetch_hub_file(FILE.repo_id, FILE.path) == path
    assert list_hub_files("owner/name") == ["data/test.jsonl"]
    assert read_rows(path) == [{"a": "ä"}]


def test_rows_are_read_from_csv(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('a,b\n1,"x, ""y""\nz"\n', "utf-8")
    assert read_rows(tmp_path / "rows.csv") == [{"a": "1", "b": 'x, "y"\nz'}]
