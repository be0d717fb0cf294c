"""The command line of a task generator, which writes a task file from an endless stream of random tasks.

    python -m resources_servers.<name>.generate --n 100 --seed 0 --output tasks.jsonl

The same arguments always give the same bytes. No task occurs twice, and tasks in an ``--exclude`` file do not occur, so
that training and validation data can be kept apart.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

from nemo_gym.errors import ConfigError

MAX_TRIES: Final = 1_000  # repetitions in a row, after which hardly any different task can be left
Row: TypeAlias = dict[str, Any]


def check_request(n: int, difficulty: int, levels: Sequence[int]) -> None:
    """Refuse a number of tasks, or a difficulty, that can't be generated."""
    if n < 0:
        raise ConfigError(f"can't generate {n} tasks", hint="ask for at least one")
    if difficulty not in levels:
        raise ConfigError(f"there is no difficulty {difficulty}", hint=f"choose one of {', '.join(map(str, levels))}")


@dataclass(frozen=True, slots=True)
class TaskGenerator:
    """``draw(rng, difficulty)`` yields rows without end; rows with equal ``identity`` fields are the same task."""

    name: str
    draw: Callable[[Random, int], Iterator[Row]]
    identity: tuple[str, ...]
    levels: tuple[int, ...] = (1,)

    def generate(self, n: int, *, seed: int, difficulty: int = 1, exclude: frozenset[str] = frozenset()) -> list[Row]:
        """``n`` different rows of one difficulty."""
        check_request(n, difficulty, self.levels)
        # A seed of text gives the same sequence on every platform and in every process.
        rng = Random(f"{self.name}/{seed}/{difficulty}")  # noqa: S311 - tasks, not secrets
        return list(itertools.islice(self._fresh(rng, difficulty, set(exclude)), n))

    def key(self, row: Row) -> str:
        """The identity of the row's task."""
        return json.dumps([row[name] for name in self.identity], sort_keys=True)

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Entry point of the command."""
        command = GeneratorCommand(self.name, self._rows, key=self.key, levels=self.levels)
        command.run(arguments)

    def _rows(self, options: argparse.Namespace, exclude: frozenset[str]) -> list[Row]:
        return self.generate(options.n, seed=options.seed, difficulty=options.difficulty, exclude=exclude)

    def _fresh(self, rng: Random, difficulty: int, seen: set[str]) -> Iterator[Row]:
        tries = 0
        for row in self.draw(rng, difficulty):
            key = self.key(row)
            if key not in seen:
                seen.add(key)
                tries = 0
                yield row
            tries += 1
            if tries > MAX_TRIES:
                raise ConfigError(
                    f"there are no more different {self.name} tasks of difficulty {difficulty}",
                    hint="ask for fewer tasks or another difficulty",
                )


@dataclass(frozen=True, slots=True)
class GeneratorCommand:
    """The command line around ``rows(options, exclude)``; rows with the same ``key`` are the same task.

    Without ``levels`` there is no ``--difficulty``. ``add_options`` adds options that only one environment has.
    """

    name: str
    rows: Callable[[argparse.Namespace, frozenset[str]], list[Row]]
    key: Callable[[Row], str]
    levels: Sequence[int] = ()
    add_options: Callable[[argparse.ArgumentParser], object] = lambda _: None

    def run(self, arguments: Sequence[str] | None = None) -> None:
        """Read the arguments (by default those of this process) and write the task file."""
        parser = self._parser()
        options = parser.parse_args(arguments)
        try:
            exclude = frozenset(itertools.chain.from_iterable(map(self._keys, options.exclude)))
            rows = self.rows(options, exclude)
        except (ConfigError, OSError) as error:
            parser.error(str(error))
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if options.output:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(text, "utf-8")
        else:
            sys.stdout.write(text)

    def _keys(self, path: Path) -> Iterator[str]:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            try:
                yield self.key(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}:{number}: not a {self.name} task ({error})") from error

    def _parser(self) -> argparse.ArgumentParser:
        program = f"python -m resources_servers.{self.name}.generate"
        parser = argparse.ArgumentParser(prog=program, description=f"Write {self.name} tasks.")
        parser.add_argument("--n", type=int, default=100, help="number of tasks (default: %(default)s)")
        parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same tasks")
        if self.levels:
            parser.add_argument("--difficulty", type=int, default=self.levels[0], choices=self.levels)
        parser.add_argument("--exclude", type=Path, action="append", default=[], help="task file whose tasks to avoid")
        parser.add_argument("--output", type=Path, help="file to write (default: standard output)")
        self.add_options(parser)
        return parser
