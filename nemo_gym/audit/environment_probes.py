"""Checks that play on in an environment: isolation of sessions, release of state, speed, and loose verification."""

import asyncio
import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from nemo_gym.audit.findings import Finding, LiveCheck, Severity, listed
from nemo_gym.audit.hosted_environment import EnvironmentSubject, HostedEnvironment, PlayedRollout, host_environment
from nemo_gym.audit.players import (
    Item,
    Row,
    ScriptedCall,
    TalkingPlayer,
    answer_forms,
    expected_values,
    message,
    only_text,
    random_call,
    script_of,
    solutions,
    tool_call_of,
)
from nemo_gym.audit.trials import Game, Trial
from nemo_gym.servers.scoring import without_threads

MAX_BLOCKED_S: Final = 0.02
MUCH_TOO_LONG_S: Final = 0.5
SLOW_S: Final = 1.0
HOSTILE_LENGTH: Final = 20_000
HOSTILE: Final = ("1", "(", "\\boxed{", ". ", "```\n", '{"a": ')
ABANDONED: Final = 20
RANDOM_TRIES: Final = 4
TRIES: Final = 3  # of everything that is timed; the quickest counts, because the machine may be busy


async def contradictory_answers(trial: Trial) -> AsyncIterator[Finding]:
    """Whether the verifier accepts an answer that gives both the right and a wrong solution, in either order."""
    if trial.subject.is_judged:
        return
    accepted = [game.number for game in trial.games["scripted"] if await _accepts_both(trial, game)]
    if accepted:
        text = f"rows {listed(accepted)}: an answer that says two different things is rewarded, in either order"
        yield Finding("warning", "ambiguous answers", text)


async def _accepts_both(trial: Trial, solved: Game) -> bool:
    right = only_text(solved.player)
    if right is None:
        return False
    own = list(expected_values(solved.row))
    others = [value for row in trial.rows.values() for value in expected_values(row) if value not in own]
    pairs = ((answer_forms(mine), answer_forms(other)) for mine in own for other in others)
    in_same_form = (texts for forms in pairs for texts in zip(*forms, strict=False))
    wrong = next((text for form, text in in_same_form if form == right), None)
    if wrong is None:
        return False
    answers = (right, f"{right}\n{wrong}", f"{wrong}\n{right}")
    return all([(await trial.hosted.verify(solved.row, [message(text)])).reward == 1 for text in answers])


async def leaking_sessions(trial: Trial) -> AsyncIterator[Finding]:
    """Play the same rollouts one by one and then all at once; only leaking state can make a difference."""
    if trial.subject.is_judged:
        return
    hosted, alone = trial.hosted, [*trial.games["random"], *trial.games["scripted"]]
    for game in alone:
        if _ending(await hosted.play(game.row, game.player)) != _ending(game.played):
            if await _is_steady(trial, game):
                text = "a rollout depends on those before it: state leaks between sessions"
                yield Finding("error", "sessions", text)
            else:
                text = "the same answers to the same task do not always lead to the same result"
                yield Finding("warning", "determinism", text)
            return
    together = await asyncio.gather(*(hosted.play(game.row, game.player) for game in [*alone, *alone]))
    if [_ending(played) for played in together] != [_ending(game.played) for game in [*alone, *alone]]:
        text = "rollouts end differently side by side than alone: state leaks between sessions"
        yield Finding("error", "sessions", text)


async def _is_steady(trial: Trial, game: Game) -> bool:
    """Whether a rollout always ends the same way in a newly loaded and started server."""
    ends = set()
    for _ in range(2):
        with _own_modules_forgotten(trial.subject):
            async with host_environment(trial.subject) as fresh:
                ends.add(_ending(await fresh.play(game.row, game.player)))
    return len(ends) == 1


@contextmanager
def _own_modules_forgotten(subject: EnvironmentSubject) -> Iterator[None]:
    """Load an environment's modules anew within the context, because some keep state in global variables."""
    file, folder = subject.environment.settings.get("file"), str(subject.environment.directory)
    own = {
        name: module
        for name, module in sys.modules.items()
        if (path := getattr(module, "__file__", None)) and (path == file or (not file and path.startswith(folder)))
    }
    for name in own:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(own)


def _ending(played: PlayedRollout) -> str:
    """The result of a rollout: its reward and the outputs of its tools."""
    output = (played.verdict.get("response") or {}).get("output") or ()
    results = [item.get("output") for item in output if item.get("type") == "function_call_output"]
    return json.dumps([played.reward, played.failure, results], sort_keys=True)


async def raising_tools(trial: Trial) -> AsyncIterator[Finding]:
    """Tools that fail in every call, with arguments from the data and with random ones that fit their schemas."""
    results: defaultdict[str, list[str | None]] = defaultdict(list)
    for row, calls in [*_known_calls(trial), *_random_calls(trial)]:
        unproven = [each for each in calls if None not in results.get(each.name, ())]  # one call that works is enough
        played = [each for each in unproven if trial.hosted.has_route(f"/{each.name}")]
        if not played:
            continue
        for each, failure in zip(played, await trial.hosted.call_tools(row, played), strict=True):
            results[each.name].append(failure)
    for name, failures in results.items():
        if all(failures):
            text = f"{name} fails in all {len(failures)} calls: {str(failures[0])[:300]}"
            hint = "if only some arguments work, a saved rollout can show it"
            yield Finding("error", "tools", text, hint)


def _known_calls(trial: Trial) -> Iterator[tuple[Row, list[ScriptedCall]]]:
    for game in [*trial.games["scripted"], *trial.games["recorded"]]:
        yield game.row, [call for item in script_of(game.player) if (call := tool_call_of(item)) is not None]


def _random_calls(trial: Trial) -> Iterator[tuple[Row, list[ScriptedCall]]]:
    offers: defaultdict[str, list[tuple[Row, Mapping[str, Any]]]] = defaultdict(list)
    for row in trial.rows.values():
        for tool in row["responses_create_params"].get("tools") or ():
            offers[str(tool.get("name"))].append((row, tool))
    for name, offered in offers.items():
        for number in range(RANDOM_TRIES):
            row, tool = offered[number % len(offered)]
            chance = random.Random(f"{name}:{number}")  # noqa: S311 - a game, not a secret
            yield row, [random_call(tool, chance)]


async def retained_state(trial: Trial) -> AsyncIterator[Finding]:
    """Whether the server keeps something for every rollout even after it has ended."""
    hosted, row = trial.hosted, next(iter(trial.rows.values()))
    before = sizes_of(hosted.server)
    for _ in range(ABANDONED):
        await hosted.seed(row)
    after = sizes_of(hosted.server)
    for name in growing(before, after, by=ABANDONED):
        text = f"{name} grows with every rollout that fails before /verify"
        yield Finding("warning", "retention", text, "SessionStates forgets what was abandoned")
    for _ in range(ABANDONED):
        await hosted.play(row, TalkingPlayer(""))
    for name in growing(after, sizes_of(hosted.server), by=ABANDONED):
        yield Finding("warning", "retention", f"{name} grows with every rollout", "/verify should remove its state")


def sizes_of(server: Any) -> dict[str, int]:
    """The lengths of the plain collections that a server object holds."""
    held = {**vars(server), **(getattr(server, "__pydantic_private__", None) or {})}
    return {name: len(value) for name, value in held.items() if isinstance(value, dict | list | set)}


def growing(before: Mapping[str, int], after: Mapping[str, int], *, by: int) -> list[str]:
    """The names of the collections that have grown by at least so much."""
    return sorted(name for name, size in after.items() if size - before.get(name, 0) >= by)


async def slow_verification(trial: Trial) -> AsyncIterator[Finding]:
    """Measure how long verification takes, and how long it blocks everything else."""
    rows = list(trial.rows.values())
    usual = [await _quickest(trial.hosted, row, _some_output(row)) for row in rows]
    p95 = sorted(each.seconds for each in usual)[math.ceil(0.95 * len(usual)) - 1]
    blocked = [(each.blocked_s, "an ordinary answer") for each in usual]
    for number, unit in enumerate(HOSTILE):
        text = (unit * HOSTILE_LENGTH)[:HOSTILE_LENGTH]
        row, output = rows[number % len(rows)], [message(text)]
        with without_threads():  # it may never end
            hostile = await trial.hosted.verify(row, output)
        if hostile.crash is not None:
            text = f"fails on {HOSTILE_LENGTH} characters of {unit!r}: {hostile.crash[:300]}"
            yield Finding("error", "verification", text)
            continue
        hostile = await _quickest(trial.hosted, row, output)
        blocked.append((hostile.blocked_s, f"{HOSTILE_LENGTH} characters of {unit!r}"))
    longest, what = max(blocked)
    trial.figures |= {"verify_p95_s": p95, "longest_block_s": longest}
    if longest > MAX_BLOCKED_S:
        text = f"blocks the event loop for {longest * 1000:.0f} ms on {what}"
        severity: Severity = "error" if longest > MUCH_TOO_LONG_S else "warning"
        yield Finding(severity, "blocking", text, "use a thread or a process")
    if p95 > SLOW_S and not trial.subject.is_judged:
        yield Finding("warning", "slow", f"verification takes {p95:.1f} s (p95)")


def _some_output(row: Row) -> list[Item]:
    texts = (text for player in solutions(row) if (text := only_text(player)) is not None)
    return [message(next(texts, "I don't know."))]


async def _quickest(hosted: HostedEnvironment, row: Row, output: list[Item]) -> PlayedRollout:
    tries = [await hosted.verify(row, output)]
    while len(tries) < TRIES and tries[-1].blocked_s > MAX_BLOCKED_S:
        tries.append(await hosted.verify(row, output))
    return min(tries, key=lambda played: played.blocked_s)


PROBES: Final[tuple[LiveCheck[Trial], ...]] = (
    contradictory_answers,
    leaking_sessions,
    raising_tools,
    retained_state,
    slow_verification,
)
