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
from pathlib import Path
from typing import Any, Final, NamedTuple

from nemo_gym.export.overlap import HeldOutFilter, NearDuplicates, Repeats
from nemo_gym.export.recipe import TOKEN_FORMATS, Recipe
from nemo_gym.export.records import DroppedRollouts, Rollout
from nemo_gym.filters import parse_filter
from nemo_gym.metrics.continuity import TRAINABLE, check_continuity
from nemo_gym.metrics.fields import count_record

SAME: Final = 1e-6  # rewards that differ by less than this count as equal


class Rule(NamedTuple):
    """A test that a rollout passes or not."""

    name: str
    passes: Callable[[Rollout], bool]


def row_rules(recipe: Recipe) -> list[Rule]:
    """The rules about single rollouts, the cheap ones first."""
    rules = [*_reward_rules(recipe), *_length_rules(recipe), *_token_rules(recipe)]
    if recipe.filter.strip():
        wanted = parse_filter(recipe.filter)
        rules.append(Rule(f"filter {recipe.filter}", lambda one: wanted.matches(one.record, file=str(one.path))))
    if recipe.decontaminate is not None:
        rules.append(_held_out(recipe, recipe.decontaminate))
    if recipe.unique:
        rules.append(Rule("unique", Repeats()))
    if recipe.near_duplicates is not None:
        rules.append(Rule(f"near_duplicates={recipe.near_duplicates}", NearDuplicates(recipe.near_duplicates)))
    return rules


def _held_out(recipe: Recipe, files: str | list[str]) -> Rule:
    held_out = HeldOutFilter(files, length=recipe.decontaminate_words, common=recipe.decontaminate_common)
    return Rule(f"decontaminate={files if isinstance(files, str) else ','.join(files)}", held_out)


def _reward_rules(recipe: Recipe) -> Iterator[Rule]:
    low, high, wanted = recipe.min_reward, recipe.max_reward, recipe.success
    if recipe.model is not None:
        yield Rule(f"model={recipe.model}", lambda one: one.model == recipe.model)
    if low is not None:
        yield Rule(f"min_reward={low:g}", lambda one: one.reward >= low)
    if high is not None:
        yield Rule(f"max_reward={high:g}", lambda one: one.reward <= high)
    if wanted is not None:
        yield Rule(f"success={str(wanted).lower()}", lambda one: _succeeded(one, recipe) is wanted)


def _succeeded(one: Rollout, recipe: Recipe) -> bool:
    if "success" in one.record or recipe.preset == "nemo":
        return bool(one.record.get("success"))
    return one.reward >= recipe.pass_threshold


def _length_rules(recipe: Recipe) -> Iterator[Rule]:
    if recipe.only_complete:
        yield Rule("complete", lambda one: not one.cut_off)
    fewest, most = recipe.min_turns, recipe.max_turns
    # The reference's tutorial calls every item of the output a turn.
    turns: Callable[[Rollout], int] = (lambda one: len(one.output)) if recipe.preset == "nemo" else _turns
    if fewest is not None:
        yield Rule(f"min_turns={fewest}", lambda one: turns(one) >= fewest)
    if most is not None:
        yield Rule(f"max_turns={most}", lambda one: turns(one) <= most)
    shortest, longest = recipe.min_tokens, recipe.max_tokens
    if shortest is not None:
        yield Rule(f"min_tokens={shortest}", lambda one: one.written_tokens >= shortest)
    if longest is not None:
        yield Rule(f"max_tokens={longest}", lambda one: one.written_tokens <= longest)


def _turns(one: Rollout) -> int:
    return count_record(one.record).turns or 0


def _token_rules(recipe: Recipe) -> Iterator[Rule]:
    if recipe.rows in TOKEN_FORMATS:
        yield Rule("token ids", lambda one: any(item.get(TRAINABLE) for item in one.output))
    by_default = recipe.rows == "sft_tokens" and recipe.on_break == "drop"
    # A row of the format rl must be one sequence, whatever the recipe says.
    if recipe.rows == "rl" or (by_default if recipe.continuity is None else recipe.continuity):
        yield Rule("continuity", lambda one: check_continuity(one.output).ok)
    if recipe.rows == "rl":
        yield Rule("log-probabilities", lambda one: has_log_probs(one.output))


def has_log_probs(output: Iterable[Mapping[str, Any]]) -> bool:
    """Whether log-probabilities of the sampled tokens were recorded."""
    calls = [item for item in output if item.get(TRAINABLE) is not None]
    return all(len(call.get("generation_log_probs") or ()) == len(call[TRAINABLE]) for call in calls)


class Candidate(NamedTuple):
    """A rollout that passed the rules about single rollouts: its position, and what the rules about tasks need."""

    path: Path
    line: int
    start: int
    task: bytes
    rollout: int
    reward: float
    tokens: int
    value: str  # of the field by which samples are balanced

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
        """Count one more."""
        self.rollouts += 1
        self.solved += solved
        self.lowest, self.highest = min(self.lowest, reward), max(self.highest, reward)


@dataclass
class SampleSelection:
    """Applies all rules of a recipe."""

    recipe: Recipe
    drops: DroppedRollouts
    scores: dict[bytes, TaskScores] = field(default_factory=lambda: defaultdict(TaskScores))

    def passing(self, rollouts: Iterable[Rollout]) -> Iterator[Rollout]:
        """The rollouts that pass the rules about single ones."""
        rules, by_task = row_rules(self.recipe), self.recipe.by_task
        for one in rollouts:
            if by_task:
                self.scores[one.task].add(one.reward, solved=one.reward >= self.recipe.pass_threshold)
            for rule in rules:
                if not rule.passes(one):
                    self.drops.add(rule.name, one.place)
                    break
            else:
                yield one

    def chosen(self, rollouts: Iterable[Rollout]) -> list[Candidate]:
        """The rollouts that also pass the rules about tasks, in the order of the files."""
        found = [self._candidate(one) for one in self.passing(rollouts)]
        for name, choose in self._task_rules():
            taken = set(choose(found))
            for one in found:
                if one not in taken:
                    self.drops.add(name, one.place)
            found = [one for one in found if one in taken]
        return found

    def _candidate(self, one: Rollout) -> Candidate:
        value = "" if self.recipe.balance_by is None else field_text(one.record, self.recipe.balance_by)
        return Candidate(one.path, one.line, one.start, one.task, one.rollout, one.reward, one.written_tokens, value)

    def _task_rules(self) -> Iterator[tuple[str, Callable[[list[Candidate]], Iterable[Candidate]]]]:
        recipe, scores = self.recipe, self.scores
        low, high = recipe.min_solve_rate, recipe.max_solve_rate
        if recipe.mixed_rewards:
            mixed = {task for task, got in scores.items() if got.highest - got.lowest > SAME}
            yield "mixed_rewards", lambda found: [one for one in found if one.task in mixed]
        if low is not None or high is not None:
            floor, ceiling = low or 0.0, 1.0 if high is None else high
            inside = {task for task, got in scores.items() if floor <= got.solved / got.rollouts <= ceiling}
            yield f"solve rate {floor:g} to {ceiling:g}", lambda found: [one for one in found if one.task in inside]
        if recipe.first_solved is not None:
            yield f"first_solved={recipe.first_solved}", self._first_solved
        if recipe.best_per_task is not None:
            yield f"best_per_task={recipe.best_per_task}", self._best
        if recipe.max_per_task is not None:
            yield f"max_per_task={recipe.max_per_task}", self._drawn
        if recipe.balance_by is not None:
            yield f"balance_by={recipe.balance_by}", self._balanced

    def _first_solved(self, found: Iterable[Candidate]) -> Iterator[Candidate]:
        solved = (one for one in found if one.reward >= self.recipe.pass_threshold)
        return first_of_each(solved, self.recipe.first_solved, by=lambda one: (one.rollout,))

    def _best(self, found: Iterable[Candidate]) -> Iterator[Candidate]:
        return first_of_each(found, self.recipe.best_per_task, by=lambda one: (-one.reward, self.draw(one)))

    def _drawn(self, found: Iterable[Candidate]) -> Iterator[Candidate]:
        return first_of_each(found, self.recipe.max_per_task, by=lambda one: (self.draw(one),))

    def _balanced(self, found: Sequence[Candidate]) -> Iterator[Candidate]:
        taken: Counter[str] = Counter()
        for one in found if self.recipe.preset == "nemo" else sorted(found, key=self.draw):
            taken[one.value] += 1
            if taken[one.value] <= self.recipe.max_per_value:
                yield one

    def draw(self, one: Candidate) -> bytes:
        """A random sort key that depends only on the seed and the rollout, not on the order of the files."""
        return seeded_bytes(self.recipe.seed, one.task, one.rollout)


def first_of_each(
    found: Iterable[Candidate], count: int | None, *, by: Callable[[Candidate], tuple[Any, ...]]
) -> Iterator[Candidate]:
    """The first few candidates of each task, in the given order."""
    tasks: dict[bytes, list[Candidate]] = defaultdict(list)
    for one in found:
        tasks[one.task].append(one)
    for members in tasks.values():
        yield from sorted(members, key=by)[:count]


def seeded_bytes(seed: int, *of: object) -> bytes:
    """Pseudo-random bytes that depend only on the arguments."""
    return hashlib.blake2b(repr((seed, of)).encode(), digest_size=8).digest()


def is_validation(one: Rollout, recipe: Recipe) -> bool:
    """Whether a rollout belongs to the validation split; the prompt decides, so that no task is in both splits."""
    if not recipe.validation:
        return False
    return int.from_bytes(seeded_bytes(recipe.seed, one.prompt_digest)) < recipe.validation * 2**64


def field_text(record: Mapping[str, Any], name: str) -> str:
    """A field of a record, which may be nested (``metadata.task_type``), as text; ``general`` if it is missing."""
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "general" if value is None else str(value)
