"""Runs rollouts in an environment with scripted players instead of a model, and reports problems to its author.

Errors must be fixed: a row is refused, a verifier crashes, a reward is not a number from 0 to 1, rollouts see each
other's state. Warnings are for the author to judge, because what is normal in one environment is a mistake in another.
"""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from omegaconf import DictConfig

from nemo_gym.servers.checking.environment_probes import PlayedAlone, check_retention, check_sessions, check_speed
from nemo_gym.servers.checking.environment_report import EnvironmentReport, PlayerSummary, is_number, listed
from nemo_gym.servers.checking.hosted_environment import HostedEnvironment, PlayedRollout, host_environment
from nemo_gym.servers.checking.players import (
    Item,
    RandomPlayer,
    Row,
    ScriptedPlayer,
    SilentPlayer,
    answer_forms,
    expected_values,
    message,
    repeating,
    solutions,
)
from nemo_gym.servers.faults import first_cause
from nemo_gym.servers.inspection import Finding

# Fields that may differ between rows that ask the same.
NEXT_TURN: Final = "/next_turn"
LABELS: Final = frozenset({"id", "task_id", "uuid", "seed", "agent_ref", "license", "source", "split", "index"})


async def check_environment(
    config: DictConfig, rows: Sequence[Row], *, recorded: Sequence[Row] = ()
) -> EnvironmentReport:
    """Play the rows and check everything that is visible from outside. ``recorded`` holds saved rollouts of them."""
    async with host_environment(config) as hosted:
        report = EnvironmentReport(hosted.resources, len(rows))
        if not hosted.has_route(NEXT_TURN):  # in a conversation of several turns, the model can ask for the difference
            report.findings += ambiguous_rows(rows)
        playable = [row async for row in _accepted(hosted, rows, report)]
        if not playable:
            return report
        _check_tools(hosted, playable, report)
        games = await _play_all(hosted, playable, report)
        again = await _play_recorded(hosted, recorded, report)
        by_player = {name: [rollout.played for rollout in rollouts] for name, rollouts in games.items()}
        by_player["recorded"] = again
        report.players = [PlayerSummary.of(name, played) for name, played in by_player.items() if played]
        _check_rewards(hosted, by_player, report)
        await check_sessions(hosted, config, [*games["random"], *games["scripted"]], report)
        await check_retention(hosted, playable, report)
        await check_speed(hosted, [(row, _some_output(row)) for row in playable], report)
        return report


def _some_output(row: Row) -> list[Item]:
    texts = [text for player in solutions(row) if (text := _only_text(player)) is not None]
    return [message(texts[0] if texts else "I don't know.")]


def ambiguous_rows(rows: Sequence[Row]) -> list[Finding]:
    """Rows that ask the same question but expect different answers, and duplicate rows.

    Rows with tools may differ in state that only the tools reveal.
    """
    by_prompt: defaultdict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows, start=1):
        by_prompt[json.dumps(row.get("responses_create_params"), sort_keys=True)].append(number)
    findings = []
    for numbers in by_prompt.values():
        kinds = {json.dumps(_expectation(rows[number - 1]), sort_keys=True) for number in numbers}
        has_tools = bool((rows[numbers[0] - 1].get("responses_create_params") or {}).get("tools"))
        if len(kinds) > 1 and not has_tools:
            text = f"rows {listed(numbers)} ask the same but expect different things"
            findings.append(Finding("error", "ambiguous rows", text))
        elif len(numbers) > len(kinds):
            findings.append(Finding("warning", "duplicate rows", f"rows {listed(numbers)} are the same"))
    return findings


def _expectation(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in LABELS and key != "responses_create_params"}


async def _accepted(hosted: HostedEnvironment, rows: Sequence[Row], report: EnvironmentReport) -> AsyncIterator[Row]:
    refused = []
    for number, row in enumerate(rows, start=1):
        seeded = await hosted.seed(row)
        if seeded.ok:
            yield row
        else:
            refused.append(f"row {number}: {first_cause(await seeded.read())[:300]}")
    if refused:
        report.error("rows", f"{len(refused)} of {len(rows)} are refused by /seed_session: {listed(refused)}")


def _check_tools(hosted: HostedEnvironment, rows: Sequence[Row], report: EnvironmentReport) -> None:
    """Check that every tool that a row offers is a route."""
    names = {tool.get("name") for row in rows for tool in row["responses_create_params"].get("tools") or ()}
    missing = [name for name in sorted(filter(None, names)) if not hosted.has_route(f"/{name}")]
    if missing:
        report.error("tools", f"rows offer tools that are not routes of the server: {listed(missing)}")


async def _play_all(
    hosted: HostedEnvironment, rows: Sequence[Row], report: EnvironmentReport
) -> dict[str, list[PlayedAlone]]:
    games: dict[str, list[PlayedAlone]] = {"silent": [], "random": [], "scripted": []}
    hedged = []
    for number, row in enumerate(rows, start=1):
        for name, player in (("silent", SilentPlayer()), ("random", RandomPlayer(f"row {number}"))):
            games[name].append(PlayedAlone(row, player, await hosted.play(row, player)))
        best = await _best_solution(hosted, row)
        if best is not None:
            games["scripted"].append(PlayedAlone(row, *best))
            report.rows_solved += best[1].reward == 1
            if await _accepts_both(hosted, row, best[0], rows):
                hedged.append(number)
    if hedged:
        text = f"rows {listed(hedged)}: an answer that says two different things is rewarded, in either order"
        report.warn("ambiguous answers", text)
    return games


async def _best_solution(hosted: HostedEnvironment, row: Row) -> tuple[ScriptedPlayer, PlayedRollout] | None:
    """The player with the highest reward among those that take their answer from the row."""
    best = None
    for player in solutions(row):
        played = await hosted.play(row, player)
        if played.failure is not None and played.failure_class is None:
            return player, played  # report a crash rather than any reward
        if is_number(played.reward) and (best is None or played.reward > best[1].reward):
            best = player, played
        if best is not None and best[1].reward >= 1:
            break
    return best


async def _accepts_both(hosted: HostedEnvironment, row: Row, solved: ScriptedPlayer, rows: Sequence[Row]) -> bool:
    """Whether the verifier accepts an answer that gives both the right and a wrong solution, in either order."""
    right = _only_text(solved)
    if right is None or hosted.is_judged:
        return False
    own = list(expected_values(row))
    others = [value for other in rows for value in expected_values(other) if value not in own]
    same_form = [text for value in others for text in answer_forms(value) if _form(text, value) == _form_of(right, own)]
    if not same_form:
        return False
    wrong = same_form[0]
    orders = [await hosted.verify(row, [message("\n".join(texts))]) for texts in ((right, wrong), (wrong, right))]
    alone = await hosted.verify(row, [message(right)])
    return alone.reward == 1 and all(each.reward == 1 for each in orders)


def _form(text: str, value: Any) -> str:
    return text.replace(str(value), "…")


def _form_of(text: str, values: Sequence[Any]) -> str | None:
    return next((_form(text, value) for value in values if str(value) in text), None)


def _only_text(player: ScriptedPlayer) -> str | None:
    items = [item for turn in player.turns for item in turn]
    return str(items[0]["content"][0]["text"]) if len(items) == 1 and items[0]["type"] == "message" else None


async def _play_recorded(
    hosted: HostedEnvironment, recorded: Sequence[Row], report: EnvironmentReport
) -> list[PlayedRollout]:
    """Repeat saved rollouts, including their tool calls; the rewards should be the same as before."""
    played, changed = [], []
    for number, rollout in enumerate(recorded, start=1):
        row = {key: value for key, value in rollout.items() if key not in ("response", "reward")}
        response = rollout.get("response") or {}
        again = await hosted.play(row, repeating(response.get("output") or []))
        played.append(again)
        # A truncated answer can't be repeated faithfully, because the player does not stop in the middle.
        is_whole = again.failure is None and not response.get("incomplete_details")
        if is_whole and is_number(rollout.get("reward")) and again.reward != rollout["reward"]:
            changed.append(f"rollout {number}: {rollout['reward']} then, {again.reward} now")
    if changed and not hosted.is_judged:
        report.warn("recorded rollouts", f"those of data/example_rollouts.jsonl get other rewards: {listed(changed)}")
    return played


def _check_rewards(
    hosted: HostedEnvironment, games: Mapping[str, Sequence[PlayedRollout]], report: EnvironmentReport
) -> None:
    crashes = [each.failure for played in games.values() for each in played if each.failure and not each.failure_class]
    if crashes:
        distinct = list(dict.fromkeys(crashes))
        report.error("verification", f"{len(crashes)} rollouts failed: {listed([text[:300] for text in distinct])}")
    finished = {name: [each for each in played if each.failure is None] for name, played in games.items()}
    rewards = [each.reward for played in finished.values() for each in played]
    odd = [reward for reward in rewards if not is_number(reward) or not 0 <= reward <= 1]
    if odd:
        report.error("rewards", f"{len(odd)} of {len(rewards)} are not numbers from 0 to 1: {listed(odd)}")
    if hosted.is_judged or not rewards:
        return
    if len({str(reward) for reward in rewards}) == 1:
        text = f"all {len(rewards)} rollouts got {rewards[0]}, whatever was answered: nothing can be learnt from that"
        if rewards[0] == 0:
            text = f"none of {len(rewards)} rollouts was rewarded; a rollout in data/example_rollouts.jsonl could be"
        report.warn("no variance", text)
        return
    for name in ("silent", "random"):
        rewarded = sum(is_number(each.reward) and each.reward > 0 for each in finished[name])
        if rewarded:
            report.warn(f"{name} player", f"{rewarded} of {len(finished[name])} of its rollouts were rewarded")
