"""Task files from the hub and to it, over the stand-in of its protocol."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.hub_server import Hub, serving

TRAIN = b'{"responses_create_params": {"input": "a"}}\n'
CONFIG = "resources_servers/calculator/configs/calculator.yaml"


@pytest.fixture
def hub(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="pip install 'rollout-gym[data]'")
    files = {
        f"owner/name/{name}": content
        for name, content in (("train.jsonl", TRAIN), ("more/x.jsonl", b"{}\n"), ("README.md", b"#"))
    }
    with serving(Hub(files, token="secret")) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", "secret")
        monkeypatch.setenv("HF_HUB_CACHE", str(workspace / "cache"))
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        monkeypatch.delenv("ROLLOUT_GYM_HUB_FOLDER", raising=False)
        yield hub


def test_a_split_is_downloaded(run, hub):
    ran = run("ng", "dataset", "download", "--repo-id", "owner/name", "--split", "train", "-o", "data/mine.jsonl")
    assert (ran.code, ran.out) == (0, "data/mine.jsonl\n")
    assert Path("data/mine.jsonl").read_bytes() == TRAIN


def test_without_a_file_all_jsonl_files_are_downloaded(run, hub):
    ran = run("ng_download_dataset_from_hf", "+repo_id=owner/name", "+output_dirpath=all")
    assert (ran.code, ran.out) == (0, "all/more/x.jsonl\nall/train.jsonl\n")
    assert not Path("all/README.md").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("+split=train",), 2, "give either output_fpath or output_dirpath"),
        (("+output_fpath=a",), 2, "name it with artifact_fpath or split"),
        (("+split=train", "+artifact_fpath=x", "+output_fpath=a"), 2, "give one of them"),
        (("+split=test", "+output_fpath=a"), 1, "could not download owner/name/test.jsonl"),
        (("+split=train", "+output_fpath=a", "+hf_token=wrong"), 1, "could not download owner/name/train.jsonl"),
    ],
)
def test_what_cannot_be_downloaded_is_explained(run, hub, arguments, code, message):
    ran = run("ng_download_dataset_from_hf", "+repo_id=owner/name", *arguments)
    assert ran.code == code
    assert message in ran.err
    assert not Path("a").exists()


def upload(run, *arguments):
    named = ("+hf_organization=us", f"+resource_config_path={CONFIG}")
    return run("ng_upload_dataset_to_hf", "+input_jsonl_fpath=train.jsonl", *named, *arguments)


def test_a_file_is_uploaded_under_the_name_of_its_environment(run, hub):
    Path("train.jsonl").write_bytes(TRAIN)
    ran = upload(run, "+split=validation", "+commit_message=Hello")
    assert ran.code == 0, ran.err
    [(path, operations)] = hub.commits
    assert path.startswith("/api/datasets/us/Nemotron-RL-math-calculator/commit/main")
    header, file = (operation["value"] for operation in operations)
    assert header["summary"] == "Hello"
    assert (file["path"], base64.b64decode(file["content"])) == ("validation.jsonl", TRAIN)
    assert "1 row uploaded to us/Nemotron-RL-math-calculator" in ran.err


def test_nothing_is_sent_if_the_rows_are_wrong_or_the_token_is(run, hub):
    Path("train.jsonl").write_text("{}\n")
    assert "train.jsonl:1: the row has no responses_create_params" in upload(run).err
    Path("train.jsonl").write_text("")
    assert "has no rows" in upload(run).err
    Path("train.jsonl").write_bytes(TRAIN)
    ran = upload(run, "+hf_token=wrong")
    assert ran.code == 1
    assert "could not upload to us/Nemotron-RL-math-calculator" in ran.err
    assert hub.commits == []


def test_a_hub_that_cannot_be_reached_is_explained(run, hub, monkeypatch):
    Path("train.jsonl").write_bytes(TRAIN)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    ran = upload(run)
    assert ran.code == 1
    assert "could not upload to us/Nemotron-RL-math-calculator" in ran.err
