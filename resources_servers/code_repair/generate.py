"""Writes repair tasks: ``python -m resources_servers.code_repair.generate --n 500 --seed 0 --output tasks.jsonl``.

Every function of a package is broken in every way that is known; a mutation becomes a task if at least two tests fail
because of it and others of the same files still pass. Both are found by running the tests in the sandbox. The same
arguments give the same rows.
"""

import argparse
import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from nemo_gym.data.task_generator import GeneratorCommand, Row, check_request
from nemo_gym.errors import ConfigError
from nemo_gym.sandbox import Runner, SandboxLimits, SandboxSettings, sandbox_runner
from resources_servers.code_repair.mutations import Kind, Mutation, functions_of, mutations_of
from resources_servers.code_repair.packages import PACKAGES, Package, files_of, pytest_folder
from resources_servers.code_repair.reports import task_row
from resources_servers.code_repair.tasks import RepairTests, broken_source, file_of, is_module, key_of, without_tests
from resources_servers.code_repair.trial import LIMITS, TestReport, run_tests

_AT_ONCE: Final = 4
_FEWEST, _MOST = 2, 40  # failing tests of a task
_PER_FUNCTION: Final = 3
_PATIENCE: Final = 4  # times the CPU time of all tests; a mutation after which they take longer is left out


@dataclass(frozen=True, slots=True)
class Level:
    """What makes tasks harder: the number of functions that are broken, how, and whether a failing test is shown."""

    functions: int
    kinds: tuple[Kind, ...]
    shown: bool


LEVELS: Final = {
    1: Level(1, ("operator", "condition", "off_by_one"), shown=True),
    2: Level(
        1, ("operator", "condition", "off_by_one", "dropped_branch", "swapped_arguments", "removed_body"), shown=False
    ),
    3: Level(2, ("condition", "off_by_one", "dropped_branch", "swapped_arguments", "removed_body"), shown=False),
}


@dataclass(frozen=True, slots=True)
class Broken:
    """Mutations that tests notice, the tests that fail because of them, and their messages."""

    mutations: tuple[Mutation, ...]
    failing: list[str]
    passing: list[str]
    messages: dict[str, str]


@dataclass(slots=True)
class Workshop:
    """One package: how its tests end, which of them call a function, and a stream of mutations that tests notice."""

    runner: Runner
    package: Package
    rng: Random
    sound: TestReport = field(default_factory=TestReport)
    callers: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    uses: dict[tuple[str, str], int] = field(default_factory=dict)
    limits: SandboxLimits = LIMITS

    async def prepare(self) -> None:
        """Run all tests twice: once to see which functions they call, once to leave out those that end differently."""
        files = dict(files_of(self.package.name))
        for path in self.package.left_out:
            del files[path]
        traced = await run_tests(self.runner, self.package, files, [self.package.tests], trace=True)
        self.sound = await run_tests(self.runner, self.package, files, [self.package.tests])
        problem = traced.problem or self.sound.problem
        if problem is not None:
            raise ConfigError(f"{self.package.name}: {problem}", hint="the tests of the package do not run here")
        self.limits = replace(LIMITS, cpu_s=2 + _PATIENCE * self.sound.cpu_s)
        for test, called in traced.calls.items():
            if test == "" or (traced.passed(test) and self.sound.passed(test)):
                for place in called:
                    self.callers.setdefault(place, set()).add(test)

    async def broken(self, level: Level) -> AsyncIterator[Broken]:
        """Mutations that make good tasks, a few at a time in parallel, in an order that depends on the seed alone."""
        singles = self._candidates(level)
        while batch := list(itertools.islice(singles, _AT_ONCE)):
            found = [each for each in await asyncio.gather(*map(self._tried, batch)) if each is not None]
            if level.functions == 1:
                for each in found:
                    if self._is_fresh(each.mutations):
                        yield each
                continue
            for one, other in zip(found[::2], found[1::2], strict=False):
                both = await self._together(one, other)
                if both is not None and self._is_fresh(both.mutations):
                    yield both

    def _candidates(self, level: Level) -> Iterator[tuple[Mutation, ...]]:
        """Single mutations of functions that tests call: kinds in turn, functions at random."""
        by_kind: dict[Kind, list[Mutation]] = {kind: [] for kind in level.kinds}
        for path, content in files_of(self.package.name).items():
            if is_module(self.package, path):
                source = content.decode()
                for function in functions_of(path, source):
                    callers = self.callers.get((path, function.first_line), set())
                    if len(callers) >= _FEWEST and "" not in callers:  # "": called by an import, which breaks all tests
                        for mutation in mutations_of(function, source):
                            by_kind.get(mutation.kind, []).append(mutation)
        for mutations in by_kind.values():
            self.rng.shuffle(mutations)
        for turn in itertools.zip_longest(*by_kind.values()):
            yield from ((mutation,) for mutation in turn if mutation is not None)

    async def _tried(self, mutations: tuple[Mutation, ...]) -> Broken | None:
        """Run the tests that call the broken functions, and those beside them."""
        if not all(self.uses.get((each.path, each.function), 0) < _PER_FUNCTION for each in mutations):
            return None
        tests = sorted(set().union(*map(self._tests_of, mutations)))
        paths = sorted(set(map(file_of, tests)))
        files = {**files_of(self.package.name), **broken_source(self.package, mutations)}
        report = await run_tests(self.runner, self.package, files, paths, limits=self.limits)
        expected = [name for name in self.sound.outcomes if self.sound.passed(name) and file_of(name) in paths]
        failing = [name for name in expected if not report.passed(name)]
        if report.problem or not _FEWEST <= len(failing) <= _MOST or not set(failing) <= set(report.messages):
            return None
        passing = [name for name in expected if report.passed(name)]
        if not passing or not self._can_be_hidden(failing):
            return None
        return Broken(mutations, failing, passing, dict(report.messages))

    async def _together(self, one: Broken, other: Broken) -> Broken | None:
        """Two mutations of different functions, in different files where there are several; each must matter."""
        first, second = one.mutations[0], other.mutations[0]
        modules = [path for path in files_of(self.package.name) if is_module(self.package, path)]
        is_apart = first.path != second.path if len(modules) > 1 else first.function != second.function
        if not is_apart or not set(one.failing) ^ set(other.failing):
            return None
        both = await self._tried((first, second))
        if both is None:
            return None
        failing = set(both.failing)
        return both if failing - set(one.failing) and failing - set(other.failing) else None

    def _tests_of(self, mutation: Mutation) -> set[str]:
        source = files_of(self.package.name)[mutation.path].decode()
        lines = {each.name: each.first_line for each in functions_of(mutation.path, source)}
        return self.callers[mutation.path, lines[mutation.function]]

    def _can_be_hidden(self, failing: Sequence[str]) -> bool:
        """Whether all failing tests are functions that can be taken out of their files."""
        files = files_of(self.package.name)
        try:
            for path in set(map(file_of, failing)):
                names = {name.partition("::")[2] for name in failing if file_of(name) == path}
                without_tests(files[path].decode(), names)
        except ConfigError:
            return False
        return True

    def _is_fresh(self, mutations: Sequence[Mutation]) -> bool:
        for each in mutations:
            place = (each.path, each.function)
            self.uses[place] = self.uses.get(place, 0) + 1
        return all(self.uses[each.path, each.function] <= _PER_FUNCTION for each in mutations)


async def generate(
    n: int, *, seed: int, difficulty: int, packages: Sequence[Package], exclude: frozenset[str] = frozenset()
) -> list[Row]:
    """``n`` different tasks of one difficulty, from the packages in turn."""
    check_request(n, difficulty, tuple(LEVELS))
    level = LEVELS[difficulty]
    rows: list[Row] = []
    seen = set(exclude)
    async with sandbox_runner(SandboxSettings(limits=LIMITS, readable=[pytest_folder()])) as runner:
        streams = []
        for package in packages:
            # A seed of text gives the same sequence on every platform and in every process.
            rng = Random(f"code_repair/{package.name}/{seed}/{difficulty}")  # noqa: S311 - tasks, not secrets
            workshop = Workshop(runner, package, rng)
            await workshop.prepare()
            streams.append((package, workshop.broken(level), rng))
        while streams and len(rows) < n:
            for stream in tuple(streams):
                package, source, rng = stream
                found = await anext(source, None)
                if found is None:
                    streams.remove(stream)
                elif len(rows) < n:
                    row = task_row(package, found.mutations, _tests(found, level, rng), found.messages, difficulty)
                    if key_of(row) not in seen:
                        seen.add(key_of(row))
                        rows.append(row)
    if len(rows) < n:
        names = ", ".join(package.name for package in packages)
        raise ConfigError(f"{names}: only {len(rows)} different tasks of difficulty {difficulty} were found")
    return rows


def _tests(broken: Broken, level: Level, rng: Random) -> RepairTests:
    shown = rng.choice(broken.failing) if level.shown else None
    return RepairTests(failing=broken.failing, passing=broken.passing, shown=shown)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    GeneratorCommand("code_repair", _rows, key=key_of, levels=tuple(LEVELS), add_options=_add_options).run(arguments)


def _rows(options: argparse.Namespace, exclude: frozenset[str]) -> list[Row]:
    chosen = [each for each in PACKAGES.values() if each.split == options.split or each.name in options.package]
    if options.package:
        chosen = [each for each in PACKAGES.values() if each.name in options.package]
    made = generate(options.n, seed=options.seed, difficulty=options.difficulty, packages=chosen, exclude=exclude)
    return asyncio.run(made)


def _add_options(parser: argparse.ArgumentParser) -> Any:
    parser.add_argument("--split", choices=("train", "validation"), default="train", help="whose packages to break")
    parser.add_argument("--package", action="append", default=[], choices=tuple(PACKAGES), help="break only this one")


if __name__ == "__main__":
    main()
