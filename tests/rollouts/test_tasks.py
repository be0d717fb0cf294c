import gzip
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.store.output import InputFacts
from nemo_gym.rollouts.tasks import (
    MissingFieldError,
    PromptConfig,
    PromptError,
    has_input,
    read_tasks,
    render,
    with_prompt,
)


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


LINES = b'{"q": 1}\n{"q": 2}\n{"q": 3}\n'


@pytest.mark.parametrize("name", ["tasks.jsonl.gz", "tasks.jsonl"])
def test_a_file_that_is_compressed_with_gzip_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(LINES))
    assert [task.fields["q"] for task in read_tasks(file, 2)] == [1, 2]
    facts = InputFacts.of(file, 2)
    file.write_bytes(gzip.compress(LINES, compresslevel=1) + b"")
    assert facts.digest == InputFacts.of(file, 2).digest


@pytest.mark.skipif(not (find_spec("zstandard") or find_spec("compression")), reason="needs the extra zstd")
def test_a_file_that_is_compressed_with_zstandard_is_read(file: Path) -> None:
    zstd = import_module("compression.zstd" if find_spec("compression") else "zstandard")
    file.write_bytes(zstd.compress(LINES))
    assert [task.fields["q"] for task in read_tasks(file)] == [1, 2, 3]


@pytest.mark.skipif(bool(find_spec("zstandard") or find_spec("compression")), reason="this Python reads Zstandard")
def test_without_zstandard_the_extra_is_named(file: Path) -> None:
    file.write_bytes(b"\x28\xb5\x2f\xfd rest")
    with pytest.raises(ConfigError, match="compressed with Zstandard") as caught:
        list(read_tasks(file))
    assert "rollout-gym[zstd]" in (caught.value.hint or "")


def test_a_compressed_file_that_is_cut_off_is_named(file: Path) -> None:
    file.write_bytes(gzip.compress(LINES)[:-12])
    with pytest.raises(ConfigError, match=r"can't read the input .*tasks.jsonl: Compressed file ended"):
        list(read_tasks(file))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"q": 1}\n'.encode("utf-16"), "is text in UTF-16"),
        ('{"q": 1}\n'.encode("utf-16-le"), "is text in UTF-16"),
        (b'[{"q": 1}, {"q": 2}]', "is a JSON array"),
        (b'\xef\xbb\xbf [\n  {"q": 1}\n]', "is a JSON array"),
        (b'{"q": "NaN"}\n{"q": NaN}\n', "line 2 is not a task: it has the value NaN"),
        (b'{"q": [-Infinity]}\n', "line 1 is not a task: it has the value -Infinity"),
    ],
)
def test_what_a_file_is_instead_of_tasks_is_said(file: Path, content: bytes, told: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=told) as caught:
        list(read_tasks(file))
    assert caught.value.hint


def user(template: str, row: dict) -> str:
    return render(PromptConfig(user=template), row)[-1]["content"]


def test_fields_are_inserted_and_never_read_as_templates() -> None:
    assert (
        user("{q} {d[key]} {l[0]} {x:.1f} {{}}", {"q": "{d}", "d": {"key": "v"}, "l": [1], "x": 2.55})
        == "{d} v 1 2.5 {}"
    )


def test_the_system_message_comes_first_if_there_is_one() -> None:
    assert [m["role"] for m in render(PromptConfig(user="u", system="s"), {})] == ["system", "user"]
    assert [m["role"] for m in render(PromptConfig(user="u"), {})] == ["user"]


def test_an_unknown_field_is_named_beside_those_there_are() -> None:
    with pytest.raises(MissingFieldError, match=r"'nope'.*\['a', 'b'\]"):
        user("{nope}", {"b": 1, "a": 2})


@pytest.mark.parametrize("template", ["{", "{}", "{0}", "{q!z}", "{l[9]}", "{q.missing}", "{l:.2f}"])
def test_a_template_that_cannot_be_filled_is_an_error_of_the_user(template: str) -> None:
    with pytest.raises(PromptError):
        user(template, {"q": "x", "l": [1]})


def test_other_parameters_are_kept_and_the_row_is_not_changed() -> None:
    row = {"responses_create_params": {"temperature": 1.0, "input": ""}, "x": 1}
    filled = with_prompt(row, [{"role": "user", "content": "hi"}])
    assert filled["responses_create_params"] == {"temperature": 1.0, "input": [{"role": "user", "content": "hi"}]}
    assert row["responses_create_params"]["input"] == ""
    assert with_prompt({"responses_create_params": None}, [])["responses_create_params"] == {"input": []}


def test_only_a_real_input_is_in_the_way() -> None:
    assert has_input({"responses_create_params": {"input": "x"}})
    for params in ({"input": ""}, {"input": []}, {"input": None}, {}, None):
        assert not has_input({"responses_create_params": params})
