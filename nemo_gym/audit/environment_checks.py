"""Runs rollouts in an environment with scripted players instead of a model, and reports problems to its author.

Errors must be fixed: a row is refused, a verifier crashes, a reward is not a number from 0 to 1, rollouts see each
other's state. Warnings are for the author to judge, because what is normal in one environment is a mistake in another.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from nemo_gym.audit.attack_checks import attack_environment
from nemo_gym.audit.environment_probes import PROBES
from nemo_gym.audit.findings import Check, CheckReport, Finding, counted, examine, examine_live, listed
from nemo_gym.audit.hosted_environment import EnvironmentSubject, host_environment
from nemo_gym.audit.players import BLIND_PLAYERS, Row
from nemo_gym.audit.stalls import interrupted_stalls
from nemo_gym.audit.trials import Trial, is_number, play_environment
from nemo_gym.servers.scoring import without_threads

NEXT_TURN: Final = "/next_turn"
# Fields that may differ between rows that ask the same.
LABELS: Final = frozenset({"id", "task_id", "uuid", "seed", "agent_ref", "license", "source", "split", "index"})
STALLED_S: Final = 2.0
RECORDED: Final = "data/example_rollouts.jsonl"


async def check_environment(subject: EnvironmentSubject, *, attack: bool = False) -> CheckReport:
    """Play the tasks and check all that is visible from outside; with ``attack``, try to get rewards for nothing."""
    async with host_environment(subject) as hosted, interrupted_stalls(STALLED_S):
        trial = await play_environment(subject, hosted)
        findings = examine(trial, TRIAL_CHECKS)
        if trial.rows:
            findings += await examine_live(trial, PROBES)
        if trial.rows and attack:
            with without_threads():
                findings += await attack_environment(trial)
    figures = trial.figures
    name, solved = subject.environment.name, figures["rows_solved"]
    summary = f"{name}: {counted(findings)}; {len(subject.tasks)} rows played, {solved} solved by what they expect"
    if trial.rows:
        took, blocked = figures["verify_p95_s"] * 1000, figures["longest_block_s"] * 1000
        summary += f"; verification takes {took:.1f} ms (p95) and blocks others for {blocked:.0f} ms at most"
    if "attacks" in figures:
        holes = sum(row["verdict"] == "hole" for row in figures["attacks"])
        summary += f"; {len(figures['attacks'])} attacks found {holes} hole{'s' * (holes != 1)}"
    return CheckReport(name, summary, findings, figures)


def ambiguous_rows(trial: Trial) -> Iterator[Finding]:
    """Rows that ask the same question but expect different answers, and duplicate rows.

    Rows with tools may differ in state that only the tools reveal. In a conversation of several turns, the model can
    ask for the difference.
    """
    if trial.hosted.has_route(NEXT_TURN):
        return
    by_prompt: defaultdict[str, list[int]] = defaultdict(list)
    rows = dict(enumerate(trial.subject.tasks, start=1))
    for number, row in rows.items():
        by_prompt[json.dumps(row.get("responses_create_params"), sort_keys=True)].append(number)
    for numbers in by_prompt.values():
        kinds = {json.dumps(_expectation(rows[number]), sort_keys=True) for number in numbers}
        has_tools = bool((rows[numbers[0]].get("responses_create_params") or {}).get("tools"))
        if len(kinds) > 1 and not has_tools:
            text = f"rows {listed(numbers)} ask the same but expect different things"
            yield Finding("error", "ambiguous rows", text)
        elif len(numbers) > len(kinds):
            yield Finding("warning", "duplicate rows", f"rows {listed(numbers)} are the same")


def _expectation(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in LABELS and key != "responses_create_params"}


def refused_rows(trial: Trial) -> Iterator[Finding]:
    """Rows that no rollout can start with."""
    if trial.refused:
        reasons = listed([f"row {number}: {reason[:300]}" for number, reason in trial.refused.items()])
        count = f"{len(trial.refused)} of {len(trial.subject.tasks)}"
        yield Finding("error", "rows", f"{count} are refused by /seed_session: {reasons}")


def missing_tools(trial: Trial) -> Iterator[Finding]:
    """Tools that a row offers but the server does not have."""
    names = {
        tool.get("name") for row in trial.rows.values() for tool in row["responses_create_params"].get("tools") or ()
    }
    missing = [name for name in sorted(filter(None, names)) if not trial.hosted.has_route(f"/{name}")]
    if missing:
        yield Finding("error", "tools", f"rows offer tools that are not routes of the server: {listed(missing)}")


def crashed_rollouts(trial: Trial) -> Iterator[Finding]:
    """Rollouts that ended without a verdict and without saying which class of failure it was."""
    crashes = [crash for games in trial.games.values() for game in games if (crash := game.played.crash)]
    if crashes:
        distinct = listed([text[:300] for text in dict.fromkeys(crashes)])
        yield Finding("error", "verification", f"{len(crashes)} rollouts failed: {distinct}")


def odd_rewards(trial: Trial) -> Iterator[Finding]:
    """Rewards that training can't use."""
    rewards = [game.played.reward for game in trial.finished]
    odd = [reward for reward in rewards if not is_number(reward) or not 0 <= reward <= 1]
    if odd:
        yield Finding("error", "rewards", f"{len(odd)} of {len(rewards)} are not numbers from 0 to 1: {listed(odd)}")


def changed_rewards(trial: Trial) -> Iterator[Finding]:
    """Saved rollouts that get another reward when they are repeated."""
    changed = []
    for saved, game in zip(trial.subject.recorded, trial.games["recorded"], strict=True):
        # A truncated answer can't be repeated faithfully, because the player does not stop in the middle.
        is_whole = game.played.failure is None and not (saved.get("response") or {}).get("incomplete_details")
        if is_whole and is_number(saved.get("reward")) and game.played.reward != saved["reward"]:
            changed.append(f"rollout {game.number}: {saved['reward']} then, {game.played.reward} now")
    if changed and not trial.subject.is_judged:
        text = f"those of {RECORDED} get other rewards: {listed(changed)}"
        yield Finding("warning", "recorded rollouts", text)


def unearned_rewards(trial: Trial) -> Iterator[Finding]:
    """Rewards that do not depend on what was done, or that a player got without knowing the task."""
    rewards = [game.played.reward for game in trial.finished]
    if trial.subject.is_judged or not rewards:
        return
    if len({str(reward) for reward in rewards}) == 1:
        yield _no_variance(rewards)
        return
    for name in BLIND_PLAYERS:
        finished = [game.played for game in trial.games[name] if game.played.failure is None]
        rewarded = sum(is_number(played.reward) and played.reward > 0 for played in finished)
        if rewarded:
            text = f"{rewarded} of {len(finished)} of its rollouts were rewarded"
            yield Finding("warning", f"{name} player", text)


def _no_variance(rewards: list[Any]) -> Finding:
    if rewards[0] == 0:
        text, hint = f"none of {len(rewards)} rollouts was rewarded", f"a rollout in {RECORDED} could be"
    else:
        text = f"all {len(rewards)} rollouts got {rewards[0]}, whatever was answered"
        hint = "nothing can be learnt from that"
    return Finding("warning", "no variance", text, hint)


TRIAL_CHECKS: Final[tuple[Check[Trial], ...]] = (
    ambiguous_rows,
    refused_rows,
    missing_tools,
    crashed_rollouts,
    odd_rewards,
    changed_rewards,
    unearned_rewards,
)
