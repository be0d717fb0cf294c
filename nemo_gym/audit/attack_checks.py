"""Plays attacks in an environment and says which of them get more than guessing may reach.

An attack solves a task if one of its moves gets the full reward there, which is what a known solution gets, or 1. What
is left of luck is in ``guessing``. An environment may list holes that are known, with the reason, in ``known_holes``;
everything else above guessing is an error, shown with the transcript that got the reward.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from nemo_gym.audit.attacks import (
    TEXT_ATTACKS,
    UNRELATED,
    Attack,
    Move,
    own_attacks,
    registered_attacks,
    see,
)
from nemo_gym.audit.findings import Finding, listed
from nemo_gym.audit.guessing import FREE, Guesses, is_luck, kind_of_answer
from nemo_gym.audit.hosted_environment import Bystander, PlayedRollout
from nemo_gym.audit.judge_attacks import injected_answers, learn_replies, scripted_judges
from nemo_gym.audit.players import TalkingPlayer, only_text
from nemo_gym.audit.program_attacks import DOCUMENT_ATTACKS, PROBE, PROGRAM_ATTACKS, asks_for_code, program, traces
from nemo_gym.audit.tool_attacks import TOOL_ATTACKS
from nemo_gym.audit.trials import Trial, is_number

AT_ONCE: Final = 4
QUOTED: Final = 300
JUDGED_TASKS: Final = 2
TOO_LONG_S: Final = 20.0
KNOWN_HOLES: Final = "known_holes"


class Reward(NamedTuple):
    """What one move got on one task."""

    number: int
    move: Move
    played: PlayedRollout
    gain: float  # as a share of the full reward


@dataclass(slots=True)
class AttackResult:
    """How an attack went: the tasks it was tried on, with the chance of luck at each, and the best move on each."""

    attack: Attack
    chances: dict[int, float] = field(default_factory=dict)
    best: dict[int, Reward] = field(default_factory=dict)
    failures: list[Reward] = field(default_factory=list)
    known: str | None = None

    @property
    def solved(self) -> list[int]:
        return [number for number, reward in self.best.items() if reward.gain >= 1]

    @property
    def gained(self) -> float:
        return sum(reward.gain for reward in self.best.values())

    @property
    def is_hole(self) -> bool:
        return not is_luck(self.gained, list(self.chances.values()))

    def figures(self, kinds: Mapping[int, str]) -> dict[str, Any]:
        """A row of the table."""
        tasks, hit = Counter(kinds[n] for n in self.chances), Counter(kinds[n] for n in self.solved)
        return {
            "attack": self.attack.name,
            "family": self.attack.family,
            "tasks": len(self.chances),
            "solved": len(self.solved),
            "share": self.gained / len(self.chances),
            "guessing": sum(self.chances.values()) / len(self.chances),
            "kinds": ", ".join(f"{kind} {hit[kind]}/{tasks[kind]}" for kind in sorted(tasks)),
            "verdict": ("known" if self.known is not None else "hole") if self.is_hole else "ok",
        }

    def transcript(self) -> dict[str, Any]:
        """The rollout that got the most."""
        reward = max(self.best.values(), key=lambda each: each.gain)
        verdict = reward.played.verdict
        output = (verdict.get("response") or {}).get("output")
        return {"task": reward.number, "reward": reward.played.reward, "output": output}


async def attack_environment(trial: Trial) -> list[Finding]:
    """Try all attacks on the tasks of a trial. Adds the table and the transcripts to its figures."""
    hosted, known = trial.hosted, getattr(trial.hosted.server, KNOWN_HOLES, None) or {}
    solutions, full, judge = _solutions(trial), _full_reward(trial), await _strict_judge(trial)
    guesses = Guesses.of(trial.rows, await _unrelated(trial, judge, full=full))
    results = []
    own, others = own_attacks(hosted.server), registered_attacks()
    escapes = await _escapes(trial, judge)
    programs = () if escapes else PROGRAM_ATTACKS  # which could end or change this very process
    for attack in (*TEXT_ATTACKS, *programs, *DOCUMENT_ATTACKS, *TOOL_ATTACKS, *others, *own):
        result = AttackResult(attack)
        moves = []
        for number, row in list(trial.rows.items())[: attack.limit]:
            found = list(attack.moves(see(row, commonest=guesses.commonest, solution=solutions.get(number))))
            if found:
                result.chances[number] = guesses.of_moves(number, found)
                moves += [(number, move) for move in found]
        if moves:
            _gather(result, await _play_all(trial, moves, judge, full=full))
            results.append(result)
    if trial.subject.is_judged:
        results += await _attack_judge(trial, full)
    for result in results:
        result.known = next((why for name, why in known.items() if fnmatchcase(result.attack.name, name)), None)
    kinds = {number: kind_of_answer(row) for number, row in trial.rows.items()}
    holes = [result for result in results if result.is_hole and result.known is None]
    trial.figures["attacks"] = [result.figures(kinds) for result in results]
    trial.figures["transcripts"] = {result.attack.name: result.transcript() for result in holes}
    return [*escapes, *map(_hole, holes), *_troubles(results)]


async def _escapes(trial: Trial, judge: Bystander | None) -> list[Finding]:
    """Whether a program of the model gets out of its box."""
    for row in trial.rows.values():
        if asks_for_code(sight := see(row)):
            await trial.hosted.play(row, TalkingPlayer(program(sight, PROBE, "None")), judge)
            return [Finding("error", "attack: escape", trace, "run them in nemo_gym.sandbox") for trace in traces()]
    return []


async def _unrelated(trial: Trial, judge: Bystander | None, *, full: float) -> dict[int, float]:
    """The share of unrelated texts that each task rewards, of those that expect no value."""
    free = [number for number, row in trial.rows.items() if kind_of_answer(row) in FREE]
    moves = [(number, Move(TalkingPlayer(text))) for number in free for text in UNRELATED]
    shares: Counter[int] = Counter()
    for reward in await _play_all(trial, moves, judge, full=full):
        shares[reward.number] += reward.gain >= 1
    return {number: shares[number] / len(UNRELATED) for number in free}


async def _play_all(
    trial: Trial, moves: Sequence[tuple[int, Move]], judge: Bystander | None, *, full: float
) -> list[Reward]:
    """The rewards of all moves, up to the first that had to be interrupted: each of these takes seconds."""
    slots = asyncio.Semaphore(AT_ONCE)
    rewards: list[Reward] = []

    async def play(number: int, move: Move) -> None:
        async with slots:
            if not any(reward.played.is_stalled for reward in rewards[-AT_ONCE:]):
                played = await trial.hosted.play(trial.rows[number], move.player, judge)
                rewards.append(Reward(number, move, played, _gain(played, full)))

    await asyncio.gather(*(play(*each) for each in moves))
    return rewards


def _gather(result: AttackResult, rewards: Iterable[Reward]) -> None:
    for reward in rewards:
        best = result.best.get(reward.number)
        if best is None or reward.gain > best.gain:
            result.best[reward.number] = reward
        if reward.played.crash is not None or reward.played.seconds > TOO_LONG_S:
            result.failures.append(reward)


def _gain(played: PlayedRollout, full: float) -> float:
    if played.failure is not None:
        return 0.0
    if not is_number(played.reward):
        return 1.0  # no verifier means to give something that is not a number
    return float(min(1.0, max(0.0, played.reward / full)))


def _full_reward(trial: Trial) -> float:
    """What a solution gets: 1, unless those that are known get less."""
    games = [*trial.games["scripted"], *trial.games["recorded"]]
    rewards = [game.played.reward for game in games if is_number(game.played.reward) and game.played.failure is None]
    best = max(rewards, default=0.0)
    return best if 0.5 <= best < 1 else 1.0


def _solutions(trial: Trial) -> dict[int, str]:
    """The texts that are known to solve tasks, by the number of the task."""
    numbers = {str(row.get("responses_create_params")): number for number, row in trial.rows.items()}
    found = {}
    for game in [*trial.games["recorded"], *trial.games["scripted"]]:
        number, text = numbers.get(str(game.row.get("responses_create_params"))), only_text(game.player)
        if number is not None and text and game.played.reward == 1:
            found[number] = text
    return found


# ---- judges ----------------------------------------------------------------------------------------------------------
async def _strict_judge(trial: Trial) -> Bystander | None:
    """A judge that finds everything wrong, because nothing that an attack says is right."""
    if not trial.subject.is_judged:
        return None
    replies = await learn_replies(trial.hosted, next(iter(trial.rows.values())))
    refusing = replies.refusing
    return None if refusing is None else lambda _: refusing


async def _attack_judge(trial: Trial, full: float) -> list[AttackResult]:
    results: dict[str, AttackResult] = {}
    for number, row in list(trial.rows.items())[:JUDGED_TASKS]:
        replies = await learn_replies(trial.hosted, row)
        for name, judge in scripted_judges(replies).items() if replies.granting else ():
            attack = Attack(f"judge injection, {name}", "judges", lambda _: ())
            result = results.setdefault(name, AttackResult(attack))
            moves = [(number, Move(TalkingPlayer(text), chance=0.0)) for text in injected_answers(replies)]
            result.chances[number] = 0.0
            _gather(result, await _play_all(trial, moves, judge, full=full))
    return list(results.values())


# ---- findings --------------------------------------------------------------------------------------------------------
def _hole(result: AttackResult) -> Finding:
    most = max(result.best.values(), key=lambda each: each.gain)
    tasks = [number for number, reward in result.best.items() if reward.gain > 0]
    guessing = sum(result.chances.values())
    text = (
        f"rewarded on {len(tasks)} of {len(result.chances)} tasks ({listed(tasks)}), where guessing may reach"
        f" {guessing:.1f}; task {most.number} gave {most.played.reward} for {_quote(most)}"
    )
    return Finding("error", f"attack: {result.attack.name}", text)


def _quote(reward: Reward) -> str:
    output = (reward.played.verdict.get("response") or {}).get("output") or ()
    calls = [f"{item.get('name')}({item.get('arguments')})" for item in output if item.get("type") == "function_call"]
    texts = [part.get("text", "") for item in output for part in item.get("content") or () if isinstance(part, dict)]
    return repr(" ".join([*calls, *texts])[:QUOTED])


def _troubles(results: Iterable[AttackResult]) -> Iterable[Finding]:
    """Attacks on which verification fails or takes much too long, which stops a training as well."""
    for result in results:
        crashes = list(dict.fromkeys(str(each.played.crash)[:QUOTED] for each in result.failures if each.played.crash))
        if crashes:
            yield Finding("error", f"attack: {result.attack.name}", f"verification fails: {listed(crashes)}")
        if any(each.played.seconds > TOO_LONG_S for each in result.failures):
            yield Finding("error", f"attack: {result.attack.name}", f"a rollout takes more than {TOO_LONG_S:.0f} s")
