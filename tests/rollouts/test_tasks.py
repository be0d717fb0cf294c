from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
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
