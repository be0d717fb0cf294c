"""Selects the rollouts that become samples, by rules that can be combined and that count what they drop.

Rules about one rollout are applied while the files are read. Rules about tasks need all rollouts of a task: they work
on an index of about 200 bytes for each rollout, and the records are read a second time. Solve rates and mixed rewards
refer to all scored rollouts of a task, including those that other rules drop. Choices among equals depend on the seed
and not on the order in the file, in which quick rollouts come first.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from nemo_gym.errors import ConfigError
from nemo_gym.exporting.overlap import HeldOutFilter, NearDuplicates, Repeats
from nemo_gym.exporting.recipe import TOKEN_FORMATS, Recipe
from nemo_gym.exporting.records import DroppedRollouts, ExportedRollout
from nemo_gym.filters import parse_filter
from nemo_gym.filters.marks import mark_of, read_marks
from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.schemas.call_tokens import TRAINABLE, log_probs_of

GENERAL: Final = "general"  # the type of a task without one, as NeMo Gym's tutorial has it
SAME: Final = 1e-6  # rewards that differ by less than this count as equal


class Rule(NamedTuple):
    """A test that a rollout passes or not."""

    name: str
    passes: Callable[[ExportedRollout], bool]


def row_rules(recipe: Recipe) -> list[Rule]:
    """The rules about single rollouts, the cheap ones first."""
    rules = [*_reward_rules(recipe), *_length_rules(recipe), *_token_rules(recipe)]
    if recipe.filter.strip():
        rules.append(_filtered(recipe.filter))
    if recipe.decontaminate is not None:
        rules.append(_held_out(recipe, recipe.decontaminate))
    if recipe.unique:
        rules.append(Rule("unique", Repeats()))
    if recipe.near_duplicates is not None:
        rules.append(Rule(f"near_duplicates={recipe.near_duplicates}", NearDuplicates(recipe.near_duplicates)))
    return rules


def _filtered(text: str) -> Rule:
    wanted, marks_in = parse_filter(text), cache(read_marks)

    def passes(rollout: ExportedRollout) -> bool:
        mark = mark_of(marks_in(rollout.path), rollout.record)
        return wanted.matches(rollout.record, file=str(rollout.path), **mark.columns)

    return Rule(f"filter {text}", passes)


def _held_out(recipe: Recipe, files: str | list[str]) -> Rule:
    held_out = HeldOutFilter(files, length=recipe.decontaminate_words, common=recipe.decontaminate_common)
    return Rule(f"decontaminate={files if isinstance(files, str) else ','.join(files)}", held_out)


def _reward_rules(recipe: Recipe) -> Iterator[Rule]:
    low, high, wanted = recipe.lowest_reward, recipe.max_reward, recipe.success
    if recipe.model is not None:
        yield Rule(f"model={recipe.model}", lambda rollout: rollout.model == recipe.model)
    if low is not None:
        yield Rule(f"min_reward={low:g}", lambda rollout: rollout.reward >= low)
    if high is not None:
        yield Rule(f"max_reward={high:g}", lambda rollout: rollout.reward <= high)
    if wanted is not None:
        yield Rule(f"success={str(wanted).lower()}", lambda rollout: _succeeded(rollout, recipe) is wanted)


def _succeeded(rollout: ExportedRollout, recipe: Recipe) -> bool:
    if "success" in rollout.record.fields or recipe.preset == "nemo":
        return bool(rollout.record.fields.get("success"))
    return rollout.reward >= recipe.pass_threshold


def _length_rules(recipe: Recipe) -> Iterator[Rule]:
    if recipe.only_complete:
        yield Rule("complete", lambda rollout: not rollout.cut_off)
    fewest, most = recipe.min_turns, recipe.max_turns
    # NeMo Gym's tutorial calls every item of the output a turn.
    turns: Callable[[ExportedRollout], int] = (
        (lambda rollout: len(rollout.output)) if recipe.preset == "nemo" else _turns
    )
    if fewest is not None:
        yield Rule(f"min_turns={fewest}", lambda rollout: turns(rollout) >= fewest)
    if most is not None:
        yield Rule(f"max_turns={most}", lambda rollout: turns(rollout) <= most)
    shortest, longest = recipe.min_tokens, recipe.max_tokens
    if shortest is not None:
        yield Rule(f"min_tokens={shortest}", lambda rollout: rollout.written_tokens >= shortest)
    if longest is not None:
        yield Rule(f"max_tokens={longest}", lambda rollout: rollout.written_tokens <= longest)


def _turns(rollout: ExportedRollout) -> int:
    return rollout.record.counts.turns or 0


def _token_rules(recipe: Recipe) -> Iterator[Rule]:
    if recipe.rows in TOKEN_FORMATS:
        yield Rule("token ids", lambda rollout: any(item.get(TRAINABLE) for item in rollout.output))
    by_default = recipe.rows == "sft_tokens" and recipe.on_break == "drop"
    # A row of the format rl must be one sequence, whatever the recipe says.
    if recipe.rows == "rl" or (by_default if recipe.continuity is None else recipe.continuity):
        yield Rule("continuity", lambda rollout: bool(rollout.record.traces) or check_continuity(rollout.output).ok)
    if recipe.rows == "rl":
        # Last, so that rollouts without any tokens are counted under "token ids".
        yield Rule("log-probabilities", lambda rollout: has_log_probs(rollout.output))


def has_log_probs(output: Iterable[Mapping[str, Any]]) -> bool:
    """Whether log-probabilities of the sampled tokens were recorded."""
    return all(log_probs_of(item) is not None for item in output if item.get(TRAINABLE) is not None)


class Candidate(NamedTuple):
    """A rollout that passed the rules about single rollouts: its position, and what the rules about tasks need."""

    path: Path
    line: int
    start: int
    task: bytes
    rollout: int
    reward: float
    tokens: int
    value: str | None  # of the field by which samples are balanced

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return f"{self.path}:{self.line}"


@dataclass
class TaskScores:
    """The rewards of all scored rollouts of a task."""

    rollouts: int = 0
    solved: int = 0
    lowest: float = float("inf")
    highest: float = float("-inf")

    def add(self, reward: float, *, solved: bool) -> None:
        self.rollouts += 1
        self.solved += solved
        self.lowest, self.highest = min(self.lowest, reward), max(self.highest, reward)


@dataclass
class SampleSelection:
    """Applies all rules of a recipe."""

    recipe: Recipe
    drops: DroppedRollouts
    scores: dict[bytes, TaskScores] = field(default_factory=lambda: defaultdict(TaskScores))

    def passing(self, rollouts: Iterable[ExportedRollout]) -> Iterator[ExportedRollout]:
        """The rollouts that pass the rules about single ones."""
        rules, by_task = row_rules(self.recipe), self.recipe.by_task
        for rollout in rollouts:
            # Before the rules: a solve rate is about all rollouts of a task, not only about those that are taken.
            if by_task:
                self.scores[rollout.task].add(rollout.reward, solved=rollout.reward >= self.recipe.pass_threshold)
            for rule in rules:
                if not rule.passes(rollout):
                    self.drops.add(rule.name, rollout.place)
                    break
            else:
                yield rollout

    def chosen(self, rollouts: Iterable[ExportedRollout]) -> list[Candidate]:
        """The rollouts that also pass the rules about tasks, in the order of the files."""
        found = [self._candidate(rollout) for rollout in self.passing(rollouts)]
        for name, choose in self._task_rules():
            taken = set(choose(found))
            for candidate in found:
                if candidate not in taken:
                    self.drops.add(name, candidate.place)
            found = [candidate for candidate in found if candidate in taken]
        return found

    def _candidate(self, rollout: ExportedRollout) -> Candidate:
        value = None if self.recipe.balance_by is None else field_text(rollout.record.fields, self.recipe.balance_by)
        place = rollout.path, rollout.line, rollout.start
        return Candidate(*place, rollout.task, rollout.rollout, rollout.reward, rollout.written_tokens, value)

    def _task_rules(self) -> Iterator[tuple[str, Callable[[list[Candidate]], Iterable[Candidate]]]]:
        recipe, scores = self.recipe, self.scores
        low, high = recipe.min_solve_rate, recipe.max_solve_rate
        if recipe.mixed_rewards:
            mixed = {task for task, got in scores.items() if got.highest - got.lowest > SAME}
            yield "mixed_rewards", lambda found: [candidate for candidate in found if candidate.task in mixed]
        if low is not None or high is not None:
            floor, ceiling = low or 0.0, 1.0 if high is None else high
            inside = {task for task, got in scores.items() if floor <= got.solved / got.rollouts <= ceiling}
            yield (
                f"solve rate {floor:g} to {ceiling:g}",
                lambda found: [candidate for candidate in found if candidate.task in inside],
            )
        if recipe.first_solved is not None:
            yield f"first_solved={recipe.first_solved}", self._first_solved
        if recipe.best_per_task is not None:
            yield f"best_per_task={recipe.best_per_task}", self._best
        if recipe.max_per_task is not None:
            yield f"max_per_task={recipe.max_per_task}", self._drawn
        if recipe.balance_by is not None:
            yield f"balance_by={recipe.balance_by}", self._balanced

    def _first_solved(self, found: Iterable[Candidate]) -> Iterator[Candidate]:
        solved = (candidate for candidate in found if candidate.reward >= self.recipe.pass_threshold)
        return first_of_each(solved, self.recipe.first_solved, by=lambda candidate: (candidate.rollout,))

    def _best(self, found: Iterable[Candidate]) -> Iterator[Candidate]:
        return first_of_each(
            found, self.recipe.best_per_task, by=lambda candidate: (-candidate.reward, self.draw(candidate))
        )

    def _drawn(self, found: Iterable[Candidate]) -> Iterator[Candidate]:
        return first_of_each(found, self.recipe.max_per_task, by=lambda candidate: (self.draw(candidate),))

    def _balanced(self, found: Sequence[Candidate]) -> Iterator[Candidate]:
        if found and self.recipe.preset != "nemo" and all(candidate.value is None for candidate in found):
            raise ConfigError(
                f"balance_by: no rollout has a field {self.recipe.balance_by}",
                hint="a field within another is written with a point, like metadata.task_type",
            )
        taken: Counter[str] = Counter()
        for candidate in found if self.recipe.preset == "nemo" else sorted(found, key=self.draw):
            value = GENERAL if candidate.value is None else candidate.value
            taken[value] += 1
            if taken[value] <= self.recipe.max_per_value:
                yield candidate

    def draw(self, candidate: Candidate) -> bytes:
        """A random sort key that depends only on the seed and the rollout, not on the order of the files."""
        return seeded_bytes(self.recipe.seed, candidate.task, candidate.rollout)


def first_of_each(
    found: Iterable[Candidate], count: int | None, *, by: Callable[[Candidate], tuple[Any, ...]]
) -> Iterator[Candidate]:
    """The first few candidates of each task, in the given order."""
    for members in by_task(found):
        yield from sorted(members, key=by)[:count]


def by_task(found: Iterable[Candidate]) -> Iterable[list[Candidate]]:
    """The candidates of each task, in the order in which tasks first appear."""
    tasks: dict[bytes, list[Candidate]] = defaultdict(list)
    for candidate in found:
        tasks[candidate.task].append(candidate)
    return tasks.values()


def seeded_bytes(seed: int, *of: object) -> bytes:
    """Pseudo-random bytes that depend only on the arguments."""
    return hashlib.blake2b(repr((seed, of)).encode(), digest_size=8).digest()


def is_validation(rollout: ExportedRollout, recipe: Recipe) -> bool:
    """Whether a rollout belongs to the validation split; the prompt decides, so that no task is in both splits."""
    if not recipe.validation:
        return False
    return int.from_bytes(seeded_bytes(recipe.seed, rollout.record.prompt_digest)) < recipe.validation * 2**64


def field_text(record: Mapping[str, Any], name: str) -> str | None:
    """A field of a record, which may be nested (``metadata.task_type``), as text; None if it is missing."""
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else str(value)
