"""Files of the hub arrive whole and right, or not at all."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_gym.data.hub import HubFile, fetch, fetch_rows, read_rows, write_rows
from nemo_gym.errors import ConfigError
from tests.data.hub_server import Hub, serving

CONTENT = b"".join(json.dumps({"question": f"q{number}", "text": "x" * 100}).encode() + b"\n" for number in range(2000))
FILE = HubFile("owner/name", "data/test.jsonl", rows=2000)
KEY = "owner/name/resolve/main/data/test.jsonl"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub({KEY: CONTENT})) as hub:
        yield hub


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.address, "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.parametrize("large", [True, False], ids=["in storage", "in Git"])
def test_a_file_is_fetched_once(hub: Hub, environment: dict[str, str], large: bool) -> None:
    hub.large = large
    assert fetch(FILE, environment).read_bytes() == CONTENT
    asked = len(hub.asked)
    assert len(fetch_rows(FILE, environment)) == 2000
    assert len(hub.asked) == asked


def test_a_transfer_that_breaks_off_is_resumed(hub: Hub, environment: dict[str, str]) -> None:
    hub.faults = ["cut"]
    pauses: list[float] = []
    assert fetch(FILE, environment, sleep=pauses.append).read_bytes() == CONTENT
    assert pauses == [1.0]
    assert [asked[1] for asked in hub.asked] == [None, None, *[f"bytes={len(CONTENT) // 2}-"] * 2]


def test_a_later_attempt_goes_on_where_an_earlier_one_gave_up(hub: Hub, environment: dict[str, str]) -> None:
    hub.faults = ["cut"] * 5
    with pytest.raises(ConfigError, match=r"could not download owner/name/data/test.jsonl: .*\(5 attempts\)"):
        fetch(FILE, environment, sleep=lambda _: None)
    assert not list(Path(environment["XDG_CACHE_HOME"]).rglob("test.jsonl"))
    before = len(hub.asked)
    assert fetch(FILE, environment).read_bytes() == CONTENT
    assert hub.asked[before][1] is not None


def test_a_busy_hub_is_asked_again_when_it_says(hub: Hub, environment: dict[str, str]) -> None:
    hub.faults = ["503", "429"]
    pauses: list[float] = []
    assert fetch(FILE, environment, sleep=pauses.append).read_bytes() == CONTENT
    assert pauses == [1.0, 7.0]


@pytest.mark.parametrize("large", [True, False], ids=["in storage", "in Git"])
def test_what_has_the_wrong_checksum_is_fetched_again(hub: Hub, environment: dict[str, str], large: bool) -> None:
    hub.large = large
    hub.faults = ["corrupt"]
    assert fetch(FILE, environment, sleep=lambda _: None).read_bytes() == CONTENT


def test_a_token_goes_to_the_hub_alone(hub: Hub, environment: dict[str, str]) -> None:
    hub.token = "secret"
    with pytest.raises(ConfigError, match="without a token") as caught:
        fetch(FILE, environment)
    assert "HF_TOKEN" in (caught.value.hint or "")
    hub.asked.clear()
    fetch(FILE, {**environment, "HF_TOKEN": "secret"})
    assert [asked[2] for asked in hub.asked] == ["Bearer secret", None]


def test_a_file_that_is_not_there_is_not_asked_for_again(hub: Hub, environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"the hub has no owner/name/none\.csv"):
        fetch(HubFile("owner/name", "none.csv", rows=1), environment)
    assert len(hub.asked) == 1


def test_a_known_checksum_must_be_right(environment: dict[str, str]) -> None:
    right = hashlib.sha256(CONTENT).hexdigest()
    fetch(HubFile("owner/name", "data/test.jsonl", rows=2000, sha256=right), environment)
    with pytest.raises(ConfigError, match="is not the published file"):
        fetch(HubFile("owner/name", "data/test.jsonl", rows=2000, sha256="0" * 64), environment)


def test_another_number_of_rows_is_an_error(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="has 2000 rows, not 1999"):
        fetch_rows(HubFile("owner/name", "data/test.jsonl", rows=1999), environment)


def test_a_local_folder_stands_in_for_the_hub(tmp_path: Path) -> None:
    environment = {"ROLLOUT_GYM_HUB_FOLDER": str(tmp_path)}
    with pytest.raises(ConfigError, match="no such file"):
        fetch(FILE, environment)
    path = tmp_path / "owner/name/data/test.jsonl"
    write_rows([{"a": "ä"}], path)
    assert fetch(FILE, environment) == path
    assert read_rows(path) == [{"a": "ä"}]


def test_rows_are_read_from_csv(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('a,b\n1,"x, ""y""\nz"\n', "utf-8")
    assert read_rows(tmp_path / "rows.csv") == [{"a": "1", "b": 'x, "y"\nz'}]
