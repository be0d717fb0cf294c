import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nemo_gym.data.task_generator import TaskGenerator
from nemo_gym.errors import ConfigError


def draw(rng: Random, difficulty: int) -> Iterator[dict[str, Any]]:
    while True:
        yield {"question": rng.randrange(50 * difficulty), "noise": rng.random()}


GENERATOR = TaskGenerator("dice", draw, identity=("question",), levels=(1, 2))


def test_the_seed_decides_everything() -> None:
    assert GENERATOR.generate(20, seed=1) == GENERATOR.generate(20, seed=1)
    assert GENERATOR.generate(20, seed=1) != GENERATOR.generate(20, seed=2)
    assert GENERATOR.generate(20, seed=1) != GENERATOR.generate(20, seed=1, difficulty=2)


def test_no_task_occurs_twice_or_is_one_to_avoid() -> None:
    first = GENERATOR.generate(30, seed=0)
    assert len({row["question"] for row in first}) == 30
    other = GENERATOR.generate(20, seed=1, exclude=frozenset(map(GENERATOR.key, first)))
    assert not {row["question"] for row in first} & {row["question"] for row in other}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 51}, "no more different dice tasks"),
        ({"n": -1}, "can't generate -1"),
        ({"difficulty": 9}, "no difficulty 9"),
    ],
)
def test_what_cannot_be_generated_is_said(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GENERATOR.generate(**{"n": 1, "seed": 0, **arguments})


def test_the_command_writes_the_same_file_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        GENERATOR.main(["--n", "7", "--seed", "5", "--output", str(tmp_path / "new" / name)])
    assert (tmp_path / "new/a").read_bytes() == (tmp_path / "new/b").read_bytes()
    GENERATOR.main(["--n", "3", "--exclude", str(tmp_path / "new/a")])
    assert [set(json.loads(line)) for line in capsys.readouterr().out.splitlines()] == [{"question", "noise"}] * 3


@pytest.mark.parametrize("line", ["{", '{"x": 1}', "7"])
def test_a_file_to_avoid_that_holds_no_tasks_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    (tmp_path / "other.jsonl").write_text(line + "\n")
    with pytest.raises(SystemExit):
        GENERATOR.main(["--exclude", str(tmp_path / "other.jsonl")])
    assert "other.jsonl:1: not a dice task" in capsys.readouterr().err
