import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.errors import ConfigError
from resources_servers.calculator.answers import extract_number
from resources_servers.calculator.expressions import evaluate, format_number
from resources_servers.calculator.generate import DEMONSTRATIONS, generate, main, task_row
from resources_servers.calculator.templates import LEVELS, TEMPLATES

DATA = Path(__file__).parents[1] / "data"
KINDS = {template.kind for template in TEMPLATES}


@settings(deadline=None)
@given(st.integers(), st.sampled_from(LEVELS))
def test_every_problem_has_the_answer_of_its_expression(seed: int, difficulty: int) -> None:
    for problem in generate(12, seed=seed, difficulty=difficulty):
        assert format_number(evaluate(problem.expression)) == problem.answer
        assert extract_number(f"The answer is {problem.answer}.") == evaluate(problem.expression) > 0
        assert "{" not in problem.question


@pytest.mark.parametrize("difficulty", LEVELS)
def test_kinds_come_in_equal_parts_and_questions_once(difficulty: int) -> None:
    problems = generate(120, seed=3, difficulty=difficulty)
    assert len({problem.question for problem in problems}) == 120
    assert {kind: [problem.kind for problem in problems].count(kind) for kind in KINDS} == dict.fromkeys(KINDS, 20)


def test_the_seed_decides_everything() -> None:
    assert generate(30, seed=1, difficulty=2) == generate(30, seed=1, difficulty=2)
    assert generate(30, seed=1, difficulty=2) != generate(30, seed=2, difficulty=2)


def test_excluded_questions_do_not_return() -> None:
    first = frozenset(problem.question for problem in generate(60, seed=1, difficulty=1))
    assert not first & {problem.question for problem in generate(60, seed=1, difficulty=1, exclude=first)}


def test_running_out_of_problems_is_said() -> None:
    with pytest.raises(ConfigError, match="no more different units problems of difficulty 1"):
        generate(5000, seed=0, difficulty=1)


def test_an_unknown_difficulty_is_refused() -> None:
    with pytest.raises(ConfigError, match="no difficulty 9"):
        generate(1, seed=0, difficulty=9)


@pytest.mark.parametrize("shots", [0, 1, 2, len(DEMONSTRATIONS), 99])
def test_worked_examples_end_with_the_own_kind(shots: int) -> None:
    problem = generate(1, seed=0, difficulty=1)[0]
    messages = task_row(problem, shots=shots)["responses_create_params"]["input"]
    questions = [message["content"] for message in messages if message.get("role") == "user"]
    assert len(questions) == min(shots, len(DEMONSTRATIONS)) + 1
    if shots:
        assert questions[-2] == DEMONSTRATIONS[problem.kind][0]


def test_rows_are_valid_tasks() -> None:
    row = task_row(generate(1, seed=0, difficulty=3)[0])
    request = BaseRunRequest.model_validate(row).responses_create_params
    assert [tool["name"] for tool in request.model_dump()["tools"]] == ["calculator"]


def test_the_command_writes_the_same_file_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        main(["--n", "7", "--seed", "5", "--difficulty", "2", "--output", str(tmp_path / name)])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert len((tmp_path / "a").read_text().splitlines()) == 7


def test_the_command_writes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--n", "2"])
    assert [json.loads(line)["difficulty"] for line in capsys.readouterr().out.splitlines()] == [1, 1]


def test_a_file_to_exclude_that_holds_no_tasks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(SystemExit) as stopped:
        main(["--exclude", str(tmp_path / "other.jsonl")])
    assert stopped.value.code == 2
    assert "other.jsonl:1: not a calculator task" in capsys.readouterr().err


def test_shipped_training_and_validation_tasks_are_disjoint() -> None:
    train, validation = (
        {json.loads(line)["question"] for line in (DATA / f"{name}.jsonl").read_text().splitlines()}
        for name in ("train", "validation")
    )
    assert (len(train), len(validation), train & validation) == (500, 100, set())


def test_the_shipped_files_are_what_the_readme_says(tmp_path: Path) -> None:
    main(["--n", "500", "--seed", "0", "--output", str(tmp_path / "train.jsonl")])
    main(
        [
            "--n",
            "100",
            "--seed",
            "1",
            "--exclude",
            str(DATA / "train.jsonl"),
            "--output",
            str(tmp_path / "validation.jsonl"),
        ]
    )
    main(["--n", "5", "--seed", "2", "--output", str(tmp_path / "example.jsonl")])
    for name in ("train.jsonl", "validation.jsonl", "example.jsonl"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()
