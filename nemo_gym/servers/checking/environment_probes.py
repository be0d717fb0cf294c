"""Checks how an environment behaves under load: isolation of sessions, release of state, and speed of verification."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from omegaconf import DictConfig

from nemo_gym.servers.checking.environment_report import EnvironmentReport
from nemo_gym.servers.checking.hosted_environment import HostedEnvironment, PlayedRollout, host_environment
from nemo_gym.servers.checking.players import Item, Player, Row, SilentPlayer, message

MAX_BLOCKED_S: Final = 0.02
MUCH_TOO_LONG_S: Final = 0.5
SLOW_S: Final = 1.0
HOSTILE_LENGTH: Final = 20_000
HOSTILE: Final = ("1", "(", "\\boxed{", ". ", "```\n", '{"a": ')
ABANDONED: Final = 20
TRIES: Final = 3  # of everything that is timed; the quickest counts, because the machine may be busy


class PlayedAlone(NamedTuple):
    """A rollout that was played alone, and how it ended."""

    row: Row
    player: Player
    played: PlayedRollout


async def check_sessions(
    hosted: HostedEnvironment, config: DictConfig, alone: Sequence[PlayedAlone], report: EnvironmentReport
) -> None:
    """Play the same rollouts one by one and then all at once; only leaking state can make a difference."""
    if hosted.is_judged:
        return
    for rollout in alone:
        again = await hosted.play(rollout.row, rollout.player)
        if fingerprint(again) != fingerprint(rollout.played):
            if await _is_steady(config, rollout):
                report.error("sessions", "a rollout depends on those before it: state leaks between sessions")
            else:
                report.warn("determinism", "the same answers to the same task do not always lead to the same result")
            return
    together = await asyncio.gather(*(hosted.play(row, player) for row, player, _ in [*alone, *alone]))
    expected = [fingerprint(rollout.played) for rollout in [*alone, *alone]]
    if [fingerprint(played) for played in together] != expected:
        report.error("sessions", "rollouts end differently side by side than alone: state leaks between sessions")


async def _is_steady(config: DictConfig, rollout: PlayedAlone) -> bool:
    """Whether a rollout always ends the same way in a newly started server."""
    ends = set()
    for _ in range(2):
        async with host_environment(config) as fresh:
            ends.add(fingerprint(await fresh.play(rollout.row, rollout.player)))
    return len(ends) == 1


def fingerprint(played: PlayedRollout) -> str:
    """The result of a rollout: its reward and the outputs of its tools."""
    output = (played.verdict.get("response") or {}).get("output") or ()
    said = [item.get("output") for item in output if item.get("type") == "function_call_output"]
    return json.dumps([played.reward, played.failure, said], sort_keys=True)


async def check_retention(hosted: HostedEnvironment, rows: Sequence[Row], report: EnvironmentReport) -> None:
    """Check whether the server keeps something for every rollout even after it has ended."""
    before = sizes_of(hosted.server)
    for _ in range(ABANDONED):
        await hosted.seed(rows[0])
    after = sizes_of(hosted.server)
    for name in sorted(growing(before, after, by=ABANDONED)):
        report.warn(
            "retention",
            f"{name} grows with every rollout that fails before /verify; SessionStates forgets what was abandoned",
        )
    for _ in range(ABANDONED):
        await hosted.play(rows[0], SilentPlayer())
    ended = sizes_of(hosted.server)
    for name in sorted(growing(after, ended, by=ABANDONED)):
        report.warn("retention", f"{name} grows with every rollout; /verify should remove its state")


def sizes_of(server: Any) -> dict[str, int]:
    """The lengths of the plain collections that a server object holds."""
    held = {**vars(server), **(getattr(server, "__pydantic_private__", None) or {})}
    return {name: len(value) for name, value in held.items() if isinstance(value, dict | list | set)}


def growing(before: Mapping[str, int], after: Mapping[str, int], *, by: int) -> set[str]:
    """The names of the collections that have grown by at least so much."""
    return {name for name, size in after.items() if size - before.get(name, 0) >= by}


async def check_speed(
    hosted: HostedEnvironment, answers: Sequence[tuple[Row, list[Item]]], report: EnvironmentReport
) -> None:
    """Measure how long verification takes, and how long it blocks everything else."""
    usual = [await _quickest(hosted, row, output) for row, output in answers]
    report.verify_p95_s = sorted(each.seconds for each in usual)[math.ceil(0.95 * len(usual)) - 1]
    blocked = [(each.blocked_s, "an ordinary answer") for each in usual]
    for number, unit in enumerate(HOSTILE):
        text = (unit * HOSTILE_LENGTH)[:HOSTILE_LENGTH]
        hostile = await _quickest(hosted, answers[number % len(answers)][0], [message(text)])
        if hostile.failure is not None and hostile.failure_class is None:
            report.error("verification", f"fails on {HOSTILE_LENGTH} characters of {unit!r}: {hostile.failure[:300]}")
        blocked.append((hostile.blocked_s, f"{HOSTILE_LENGTH} characters of {unit!r}"))
    report.longest_block_s, what = max(blocked)
    if report.longest_block_s > MAX_BLOCKED_S:
        text = f"blocks the event loop for {report.longest_block_s * 1000:.0f} ms on {what}: use a thread or a process"
        (report.error if report.longest_block_s > MUCH_TOO_LONG_S else report.warn)("blocking", text)
    if report.verify_p95_s > SLOW_S and not hosted.is_judged:
        report.warn("slow", f"verification takes {report.verify_p95_s:.1f} s (p95)")


async def _quickest(hosted: HostedEnvironment, row: Row, output: list[Item]) -> PlayedRollout:
    tries = [await hosted.verify(row, output)]
    while len(tries) < TRIES and tries[-1].blocked_s > MAX_BLOCKED_S:
        tries.append(await hosted.verify(row, output))
    return min(tries, key=lambda played: played.blocked_s)
