from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.tasks import read_tasks


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


def test_equal_lines_are_the_same_task_whatever_ends_them(file: Path) -> None:
    file.write_bytes(b'{"q": 1}\n{"q": 2}\r\n{"q": 1}\r\n{"q": 2}')
    first, second, third, fourth = read_tasks(file)
    assert [task.fields for task in (first, second)] == [{"q": 1}, {"q": 2}]
    assert first.identity == third.identity != second.identity == fourth.identity
    assert [task.number for task in (first, second, third, fourth)] == [0, 1, 2, 3]


@pytest.mark.parametrize(("limit", "count"), [(None, 3), (0, 3), (2, 2), (9, 3), (-1, 0)])
def test_the_limit(file: Path, limit: int | None, count: int) -> None:
    file.write_bytes(b"{}\n" * 3)
    assert len(list(read_tasks(file, limit))) == count


def test_lines_beyond_the_limit_are_not_looked_at(file: Path) -> None:
    file.write_bytes(b"{}\nnot json\n")
    assert len(list(read_tasks(file, 1))) == 1


@pytest.mark.parametrize(
    ("line", "reason"), [(b"{", "line 2"), (b"", "empty"), (b"[1]", "object"), (b"\xff", "line 2")]
)
def test_a_line_that_is_no_task_is_named(file: Path, line: bytes, reason: str) -> None:
    file.write_bytes(b"{}\n" + line + b"\n{}\n")
    with pytest.raises(ConfigError) as caught:
        list(read_tasks(file))
    assert f"{file}: line 2" in str(caught.value)
    assert reason in str(caught.value)
    assert caught.value.hint


def test_a_byte_order_mark_is_no_part_of_the_first_task(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf{"q": 1}\n{"q": 1}\n')
    first, second = read_tasks(file)
    assert first.identity == second.identity
