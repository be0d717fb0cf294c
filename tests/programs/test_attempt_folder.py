"""What a program leaves behind is read within limits, and no link is followed."""

import os
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.programs.attempt_folder import AttemptFolders, read_regular


@pytest.fixture
def folders(tmp_path: Path) -> AttemptFolders:
    return AttemptFolders(tmp_path / "attempts")


def test_changes_are_a_diff_and_the_new_texts(folders: AttemptFolders) -> None:
    with folders.open() as folder:
        folder.write({"a.py": "one\ntwo\n", "gone.txt": "x\n", "same.txt": "s\n", "~/.config/tool.json": "{}"})
        assert (folder.home / ".config/tool.json").read_text() == "{}"
        (folder.workspace / "a.py").write_text("one\n2\n")
        (folder.workspace / "gone.txt").unlink()
        (folder.workspace / "new").mkdir()
        (folder.workspace / "new/b.txt").write_text("b")
        (folder.workspace / "picture.png").write_bytes(b"\xff\xfe\x00")
        changes = folder.changes()
    assert changes.files == {"a.py": "one\n2\n", "new/b.txt": "b"}
    assert changes.removed == ("gone.txt",)
    assert "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" in changes.diff
    assert "+b\n\\ No newline at end of file\n" in changes.diff
    assert "Binary file picture.png (3 bytes)" in changes.diff
    assert "same.txt" not in changes.diff
    assert changes.is_complete
    assert not folder.root.exists()


def test_links_out_of_the_workspace_are_not_read(folders: AttemptFolders, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    with folders.open() as folder:
        (folder.workspace / "link").symlink_to(tmp_path / "secret")
        (folder.workspace / "up").symlink_to(tmp_path)
        os.mkfifo(folder.workspace / "pipe")
        changes = folder.changes()
        assert read_regular(folder.workspace, "link", most=100) is None
        assert read_regular(folder.workspace, "up/secret", most=100) is None
        assert read_regular(folder.workspace, "pipe", most=100) is None
    assert (changes.files, changes.diff) == ({}, "")
    assert (tmp_path / "secret").exists()


def test_large_files_are_left_out_and_that_is_said(folders: AttemptFolders) -> None:
    with folders.open() as folder:
        (folder.workspace / "big").write_bytes(b"x" * (3 << 20))
        changes = folder.changes()
    assert changes.files == {}
    assert changes.as_fields()["is_complete"] is False


def test_a_folder_is_removed_even_if_its_program_forbids_it(folders: AttemptFolders) -> None:
    with folders.open() as folder:
        (folder.workspace / "locked").mkdir()
        (folder.workspace / "locked/file").write_text("x")
        (folder.workspace / "locked").chmod(0)
    assert not folder.root.exists()


def test_files_can_not_be_put_outside(folders: AttemptFolders) -> None:
    with folders.open() as folder, pytest.raises(ConfigError, match="outside the workspace"):
        folder.write({"../x": "y"})


def test_folders_of_dead_processes_are_removed(folders: AttemptFolders, tmp_path: Path) -> None:
    dead, other = tmp_path / "attempts/999999999-abc", tmp_path / "attempts/notes"
    for folder in (dead, other):
        folder.mkdir(parents=True)
    with folders.open() as mine:
        folders.remove_abandoned()
        assert mine.root.exists()
    assert (dead.exists(), other.exists()) == (False, True)
