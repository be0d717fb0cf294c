"""A trial of an environment: what scripted players made of its tasks, as values that checks look at."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nemo_gym.audit.hosted_environment import EnvironmentSubject, HostedEnvironment, PlayedRollout
from nemo_gym.audit.players import BLIND_PLAYERS, Player, Row, repeating, solutions
from nemo_gym.servers.middleware.faults import first_cause


class Game(NamedTuple):
    """A task, counted from 1, that one player played alone, and how that ended."""

    number: int
    row: Row
    player: Player
    played: PlayedRollout


@dataclass(slots=True)
class Trial:
    """The tasks that an environment accepted or refused, and the games of every player.

    Checks that measure something add it to the figures.
    """

    subject: EnvironmentSubject
    hosted: HostedEnvironment
    rows: dict[int, Row] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    games: dict[str, list[Game]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> Iterator[Game]:
        """The games that ended with a verdict."""
        return (game for games in self.games.values() for game in games if game.played.failure is None)


async def play_environment(subject: EnvironmentSubject, hosted: HostedEnvironment) -> Trial:
    """Let every player play every task, one by one."""
    trial = Trial(subject, hosted)
    for number, row in enumerate(subject.tasks, start=1):
        seeded = await hosted.seed(row)
        if seeded.ok:
            trial.rows[number] = row
        else:
            trial.refused[number] = first_cause(await seeded.read())
    for name, player_of in BLIND_PLAYERS.items():
        pairs = [(number, row, player_of(number)) for number, row in trial.rows.items()]
        trial.games[name] = [Game(*pair, await hosted.play(pair[1], pair[2])) for pair in pairs]
    best = [await _best_game(hosted, number, row) for number, row in trial.rows.items()]
    trial.games["scripted"] = [game for game in best if game is not None]
    trial.games["recorded"] = [await _repeat(hosted, *each) for each in enumerate(subject.recorded, start=1)]
    trial.figures |= {
        "rows": len(subject.tasks),
        "rows_solved": sum(game.played.reward == 1 for game in trial.games["scripted"]),
        "players": [_summary(name, games) for name, games in trial.games.items() if games],
    }
    return trial


async def _best_game(hosted: HostedEnvironment, number: int, row: Row) -> Game | None:
    """The game with the highest reward among players that take their answer from the row."""
    best = None
    for player in solutions(row):
        game = Game(number, row, player, await hosted.play(row, player))
        if game.played.crash is not None:
            return game  # report a crash rather than any reward
        if is_number(game.played.reward) and (best is None or game.played.reward > best.played.reward):
            best = game
        if best is not None and best.played.reward >= 1:
            break
    return best


async def _repeat(hosted: HostedEnvironment, number: int, rollout: Row) -> Game:
    """Repeat a saved rollout, including its tool calls."""
    row = {key: value for key, value in rollout.items() if key not in ("response", "reward")}
    player = repeating((rollout.get("response") or {}).get("output") or [])
    return Game(number, row, player, await hosted.play(row, player))


def _summary(player: str, games: list[Game]) -> dict[str, Any]:
    rewards = [each.played.reward for each in games if is_number(each.played.reward) and each.played.failure is None]
    return {
        "player": player,
        "rollouts": len(games),
        "failed": sum(each.played.failure is not None for each in games),
        "mean": sum(rewards) / len(rewards) if rewards else None,
        "lowest": min(rewards, default=None),
        "highest": max(rewards, default=None),
    }


def is_number(value: Any) -> bool:
    """Whether a value can be a reward at all."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
