r"""Writes tasks: ``python -m resources_servers.reasoning_gym.generate --n 100 --seed 0 --output tasks.jsonl``.

Every generator of the package takes its turn; ``--tasks`` chooses some. Tasks are endless: each is made when it is
asked for. ``--difficulty`` is the level of the package's curricula, 0 being the easiest; a generator with fewer levels
gives its highest.
"""

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

SYSTEM: Final = "Solve the task. Give the final answer, and nothing else, between <answer> and </answer>."
# A combination of others, which are all here.
LEFT_OUT: Final = frozenset({"composite"})
# Some generators make all their tasks at once, so each is asked for this many at a time, each time with a new seed.
BLOCK: Final = 50
INSTALL: Final = "pip install 'rollout-gym[environments]', or -r resources_servers/reasoning_gym/requirements.txt"


def task_names() -> list[str]:
    """All generators of the installed package."""
    return sorted(set(_factory().DATASETS) - LEFT_OUT)


def tasks(names: Sequence[str] | None = None, *, seed: int = 0, difficulty: int = 0) -> Iterator[dict[str, Any]]:
    """Rows without end, one of each generator in turn."""
    known = task_names()
    chosen = list(names or known)
    if wrong := [name for name in chosen if name not in known]:
        raise ConfigError(f"the package has no generator {', '.join(wrong)}", hint=f"choose from {', '.join(known)}")
    for number in itertools.count():
        for name in chosen:
            yield task_row(name, number, seed=seed, difficulty=difficulty)


def task_row(name: str, number: int, *, seed: int, difficulty: int) -> dict[str, Any]:
    """One task as a line of a task file."""
    block, index = divmod(number, BLOCK)
    entry = _dataset(name, Random(f"{seed}/{block}").randrange(2**31), difficulty)[index]  # noqa: S311
    metadata = {**entry.get("metadata", {}), "source_dataset": name}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": entry["question"]}]
    row = {
        "responses_create_params": {"input": messages},
        "question": entry["question"],
        "answer": entry["answer"],
        "difficulty": difficulty,
        "metadata": metadata,
    }
    plain: dict[str, Any] = json.loads(json.dumps(row, default=str))
    return plain


@functools.lru_cache(maxsize=256)
def _dataset(name: str, seed: int, difficulty: int) -> "ProceduralDataset":
    """The generator at a level, or at the highest below it that the package's own checks accept."""
    dataset_class, config_class = _factory().DATASETS[name]
    problem: Exception | None = None
    for level in (*range(difficulty, -1, -1), None):
        try:
            settings = {"seed": seed, "size": BLOCK}
            dataset = dataset_class(
                config_class(**settings) if level is None else _curriculum_config(name, level, settings)
            )
            dataset[0]
        except (AssertionError, KeyError, ValueError, TypeError) as error:
            problem = error
        else:
            return dataset
    raise ConfigError(f"generator {name!r} of the package does not work: {problem}")


def _curriculum_config(name: str, level: int, settings: dict[str, Any]) -> Any:
    curriculum = _factory().create_curriculum(name)
    for attribute, definition in curriculum.attributes.items():
        curriculum.set_attr_level(attribute, min(level, len(definition.levels) - 1))
    return curriculum.generate_configuration(settings)


def _factory() -> Any:
    try:
        from reasoning_gym import factory  # noqa: PLC0415 - heavy, and not there without the extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"the package {error.name!r} is not installed", hint=INSTALL) from None
    return factory


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m resources_servers.reasoning_gym.generate", description=__doc__)
    parser.add_argument("--n", type=int, default=100, help="number of tasks; 0 for no end (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same tasks (default: %(default)s)")
    parser.add_argument("--difficulty", type=int, default=0, help="level, 0 is the easiest (default: %(default)s)")
    parser.add_argument("--tasks", help="names of generators, separated by commas (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names of all generators and stop")
    parser.add_argument("--output", type=Path, help="file to write (default: standard output)")
    options = parser.parse_args(arguments)
    try:
        if options.list:
            sys.stdout.write("\n".join(task_names()) + "\n")
            return
        names = options.tasks.split(",") if options.tasks else None
        rows = tasks(names, seed=options.seed, difficulty=options.difficulty)
        if options.output is None:
            _write(rows, options.n, sys.stdout)
        else:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            with options.output.open("w", encoding="utf-8") as file:
                _write(rows, options.n, file)
    except (ConfigError, OSError) as error:
        parser.error(str(error))


def _write(rows: Iterator[dict[str, Any]], count: int, file: Any) -> None:
    for row in itertools.islice(rows, count or None):
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
