"""Every generator of the package, and its own answers through our scoring."""

import importlib.util
import itertools
import json
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from resources_servers.reasoning_gym import generate
from resources_servers.reasoning_gym.generate import BLOCK, main, task_names, task_row, tasks

# Importing the package takes seconds, so only the tests do; looking for it must not.
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("reasoning_gym") is None, reason="pip install 'rollout-gym[environments]'"
    ),
    # The package's libraries leave files open and use outdated names; that is not ours to judge.
    pytest.mark.filterwarnings("ignore"),
]
# What takes seconds to generate is left to the package's own tests.
SLOW = {"bf", "jugs", "knight_swap", "sokoban"}


def test_all_generators_but_the_combined_one_are_here() -> None:
    assert len(task_names()) >= 100
    assert "composite" not in task_names()


def test_the_answers_of_every_generator_score_what_they_score_in_the_package() -> None:
    from resources_servers.reasoning_gym import scoring

    wrong = []
    for name in set(task_names()) - SLOW:
        row = task_row(name, 0, seed=5, difficulty=0)
        dataset = generate._dataset(name, generate.Random("5/0").randrange(2**31), 0)
        entry = dataset[0]
        assert row["question"] == entry["question"], name
        if entry["answer"] is None:  # a task with many solutions has no answer of its own
            continue
        if scoring.score(row["answer"], row)["score"] != dataset.score_answer(entry["answer"], entry):
            wrong.append(name)
    assert wrong == []


def test_tasks_are_endless_and_the_same_for_the_same_seed() -> None:
    names = ["chain_sum", "leg_counting"]
    many = list(itertools.islice(tasks(names, seed=1), 2 * BLOCK + 6))
    assert many == list(itertools.islice(tasks(names, seed=1), 2 * BLOCK + 6))
    assert many != list(itertools.islice(tasks(names, seed=2), 2 * BLOCK + 6))
    assert [row["metadata"]["source_dataset"] for row in many[:4]] == names * 2
    assert len({row["question"] for row in many}) > BLOCK


def test_difficulty_makes_tasks_harder() -> None:
    easy, hard = (task_row("chain_sum", 0, seed=1, difficulty=level) for level in (0, 3))
    assert len(hard["question"]) > len(easy["question"])


def test_a_level_that_the_package_refuses_gives_the_next_lower_one() -> None:
    assert task_row("caesar_cipher", 0, seed=1, difficulty=9)["question"]


def test_an_unknown_generator_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no generator chain_some"):
        next(tasks(["chain_some"]))


def test_the_command_writes_rows_and_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--n", "3", "--tasks", "chain_sum", "--output", str(tmp_path / "rows.jsonl")])
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text("utf-8").splitlines()]
    assert [row["metadata"]["source_dataset"] for row in rows] == ["chain_sum"] * 3
    main(["--list"])
    assert "chain_sum" in capsys.readouterr().out.split()
