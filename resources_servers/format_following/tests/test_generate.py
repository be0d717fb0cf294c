import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.errors import ConfigError
from resources_servers.format_following.checks import CHECK_KINDS, judge, parse_checks
from resources_servers.format_following.generate import LEVELS, WORD_LIMITS, generate, main, task_row
from resources_servers.format_following.tasks import DEMONSTRATIONS, GOALS

DATA = Path(__file__).parents[1] / "data"


@settings(deadline=None)
@given(st.integers(), st.sampled_from(LEVELS))
def test_every_task_has_valid_checks_that_do_not_exclude_each_other(seed: int, difficulty: int) -> None:
    for task in generate(25, seed=seed, difficulty=difficulty):
        checks = parse_checks(task.checks)
        needed = [
            word
            for check in task.checks
            for word in (check.get("word"), check.get("text"))
            if word and check["kind"] != "excludes_word"
        ]
        limits = [check for check in checks if check.kind in WORD_LIMITS]
        assert len(checks) - difficulty in {0, 1}
        assert not needed or not judge(" ".join(needed), limits).failed


def test_all_kinds_of_checks_are_generated() -> None:
    tasks = [task for difficulty in LEVELS for task in generate(300, seed=1, difficulty=difficulty)]
    assert {type(check) for task in tasks for check in parse_checks(task.checks)} == set(CHECK_KINDS)


@pytest.mark.parametrize("example", DEMONSTRATIONS, ids=str)
def test_worked_examples_do_what_they_are_asked(example: tuple[str, str]) -> None:
    goal, kind = example
    prompt, answer = DEMONSTRATIONS[example]
    assert goal in GOALS
    checks: dict[str, dict[str, Any]] = {
        "numbered_list": {"count": 3},
        "bullet_list": {"count": 3},
        "comma_list": {"count": 4},
        "line_count": {"count": 3},
        "sentence_count": {"count": 2},
        "word_count": {"at_least": 4, "at_most": 6},
        "word_length": {"at_most": 6},
        "starts_with": {"text": "Most"},
        "ends_with": {"text": "grass"},
        "contains_word": {"word": "fast", "count": 1},
        "excludes_letter": {"letter": "k"},
        "excludes_word": {"word": "in"},
        "each_word_starts_with": {"letter": "h"},
        "one_of": {"options": ["yes", "no"]},
        "json_keys": {"keys": ["food", "legs"]},
    }
    parameters = checks.get(kind, {})
    subject = [{"kind": "contains_word", "word": "horse"}] if goal in {"sentence", "text"} else []
    assert judge(answer, parse_checks([{"kind": kind, **parameters}, *subject])).failed == []
    for value in parameters.values():
        assert all(str(part) in prompt for part in (value if isinstance(value, list) else [value]) if value != 1)


@pytest.mark.parametrize("difficulty", LEVELS)
def test_no_prompt_comes_twice(difficulty: int) -> None:
    tasks = generate(200, seed=3, difficulty=difficulty)
    assert len({task.prompt for task in tasks}) == 200


def test_the_seed_decides_everything() -> None:
    assert generate(30, seed=1, difficulty=2) == generate(30, seed=1, difficulty=2)
    assert generate(30, seed=1, difficulty=2) != generate(30, seed=2, difficulty=2)


def test_excluded_prompts_do_not_return() -> None:
    first = frozenset(task.prompt for task in generate(60, seed=1, difficulty=1))
    assert not first & {task.prompt for task in generate(60, seed=1, difficulty=1, exclude=first)}


def test_an_unknown_difficulty_is_refused() -> None:
    with pytest.raises(ConfigError, match="no difficulty 0"):
        generate(1, seed=0, difficulty=0)


@pytest.mark.parametrize(("shots", "examples"), [(0, 0), (1, 1), (3, 3), (99, len(DEMONSTRATIONS))])
def test_worked_examples_end_with_the_most_similar(shots: int, examples: int) -> None:
    for task in generate(21, seed=0, difficulty=1):
        messages = task_row(task, shots=shots)["responses_create_params"]["input"]
        assert len(messages) == 2 + 2 * examples
        if shots:
            assert messages[-3]["content"] == DEMONSTRATIONS[task.goal, task.checks[-1]["kind"]][0]


def test_rows_are_valid_tasks() -> None:
    row = task_row(generate(1, seed=0, difficulty=3)[0])
    request = BaseRunRequest.model_validate(row).responses_create_params
    assert request.model_dump(exclude_unset=True)["input"][-1] == {"role": "user", "content": row["prompt"]}


def test_the_command_writes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--n", "2", "--difficulty", "2"])
    assert [json.loads(line)["difficulty"] for line in capsys.readouterr().out.splitlines()] == [2, 2]


def test_a_file_to_exclude_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--exclude", "missing.jsonl"])
    assert "missing.jsonl" in capsys.readouterr().err


def test_shipped_training_and_validation_tasks_are_disjoint() -> None:
    train, validation = (
        {json.loads(line)["prompt"] for line in (DATA / f"{name}.jsonl").read_text().splitlines()}
        for name in ("train", "validation")
    )
    assert (len(train), len(validation), train & validation) == (500, 100, set())


def test_the_shipped_files_are_what_the_readme_says(tmp_path: Path) -> None:
    main(["--n", "500", "--seed", "0", "--output", str(tmp_path / "train.jsonl")])
    exclude = ["--exclude", str(tmp_path / "train.jsonl")]
    main(["--n", "100", "--seed", "1", *exclude, "--output", str(tmp_path / "validation.jsonl")])
    main(["--n", "5", "--seed", "2", "--output", str(tmp_path / "example.jsonl")])
    for name in ("train.jsonl", "validation.jsonl", "example.jsonl"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()
