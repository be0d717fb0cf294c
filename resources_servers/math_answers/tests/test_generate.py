import json
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from resources_servers.math_answers.compare import compare_plainly
from resources_servers.math_answers.extract import extract_answer
from resources_servers.math_answers.generate import KINDS, generate, main

DATA = Path(__file__).parent.parent / "data"


def test_the_same_seed_gives_the_same_tasks() -> None:
    assert generate(50, seed=3) == generate(50, seed=3)
    assert generate(50, seed=3) != generate(50, seed=4)


def test_all_kinds_occur_and_no_question_twice() -> None:
    problems = generate(140, seed=0)
    assert {problem.kind for problem in problems} == set(KINDS)
    assert len({problem.question for problem in problems}) == 140


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_the_answer_in_a_box_is_found_and_equal(difficulty: int) -> None:
    for problem in generate(70, seed=1, difficulty=difficulty):
        answer = extract_answer(rf"Thus $\boxed{{{problem.answer}}}$.")
        assert answer is not None
        found = compare_plainly(problem.answer, answer.text)
        assert found is not None
        assert found.equal


def test_the_shipped_data_is_what_the_generator_writes(tmp_path: Path) -> None:
    names = ("train", "validation", "example", "easy")
    train, validation, example, easy = (tmp_path / f"{name}.jsonl" for name in names)
    main(["--n", "350", "--seed", "0", "--output", str(train)])
    main(["--n", "70", "--seed", "1", "--exclude", str(train), "--output", str(validation)])
    main(["--n", "5", "--seed", "2", "--output", str(example)])
    main(["--n", "60", "--seed", "0", "--difficulty", "0", "--output", str(easy)])
    for path in (train, validation, example, easy):
        assert path.read_bytes() == (DATA / path.name).read_bytes()
    questions = {json.loads(line)["question"] for line in train.read_text("utf-8").splitlines()}
    assert questions.isdisjoint(json.loads(line)["question"] for line in validation.read_text("utf-8").splitlines())


def test_the_easiest_level_has_sums_behind_worked_examples() -> None:
    rows = [json.loads(line) for line in (DATA / "easy.jsonl").read_text("utf-8").splitlines()]
    assert {row["kind"] for row in rows} == {"number"}
    assert all(len(row["responses_create_params"]["input"]) == 8 for row in rows)


def test_too_many_tasks_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no more different tasks"):
        generate(100_000, seed=0)
