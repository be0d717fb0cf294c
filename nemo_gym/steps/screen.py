"""One screen about the time of a run: its shares, how long calls took, how many ran at once, and what to change.

Figures that can't be determined are left out, with the reason. For a run without steps, the screen shows what its other
files reveal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from nemo_gym.io.compressed import open_lines
from nemo_gym.io.files import RunFiles
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record, outline_of
from nemo_gym.steps.bottleneck import Bottleneck, Cause, find_bottleneck
from nemo_gym.steps.facts import RunFacts, longest_session, read_facts
from nemo_gym.steps.steps_file import identify, read_steps
from nemo_gym.steps.summary import TimeSummary, shown_times
from nemo_gym.steps.timing_text import run_lines
from nemo_gym.steps.totals import summarise

WIDTH: Final = 100  # of the screen in characters
FIRST_SHARES: Final = 4
COUNTED_BYTES: Final = 64 * 2**20
SKEW_S: Final = 600.0  # by which the clocks of machines may differ


@dataclass(frozen=True, slots=True)
class RunProfile:
    """What is known about the time of a run."""

    summary: TimeSummary
    facts: RunFacts | None
    finding: Bottleneck
    has_steps: bool = True
    foreign: str = ""  # how it is known that the steps are those of another run, if they are


def profile_of(files: RunFiles, *, check: bool = False) -> RunProfile:
    """Read the timing files of a run; with ``check``, find out whether the steps can be those of its rollouts.

    Nothing is concluded from the steps of another run.
    """
    summary = summarise(read_steps(files.steps))
    sessions = read_facts(files.timing)
    facts = longest_session(sessions)
    foreign = (_other_keys(files) or _other_times(files, sessions)) if check and summary.attempts else ""
    finding = _UNRELATED if foreign else find_bottleneck(summary, facts)
    return RunProfile(summary, facts, finding, has_steps=summary.attempts > 0, foreign=foreign)


_UNRELATED: Final = Bottleneck(Cause.NOTHING, "these are the steps of another run", "")


def _other_keys(files: RunFiles) -> str:
    """Say so if steps were written in another order than rollouts; both are written together, as attempts end.

    Runs over the same tasks have the same keys, but with several rollouts at once they don't end in the same order.
    Some rollouts may lack steps. Large files are not read, because that takes too long.
    """
    try:
        if files.rollouts.stat().st_size > COUNTED_BYTES:
            return ""
        with open_lines(files.rollouts) as rollouts, files.steps.open("rb") as steps:
            keys = [Record(outline_of(line)).key for line in rollouts]
            if None in keys:
                return ""
            rest = iter(keys)
            for line in steps:
                attempt = identify(line)
                if attempt is not None and attempt.completed and attempt.key not in rest:
                    task, rollout = attempt.key
                    return f"rollout {rollout} of task {task} is not in {files.rollouts}, or not in this order"
    except (OSError, RolloutFormatError):
        pass
    return ""


def _other_times(files: RunFiles, sessions: Sequence[RunFacts]) -> str:
    """Say so if no attempt began while this run was running. A session that was killed is not among those known."""
    known = [facts for facts in sessions if facts.attempts and facts.started_at and facts.wall_s]
    if not known:
        return ""
    for attempt in read_steps(files.steps):
        if any(-SKEW_S <= attempt.started_at - facts.started_at <= facts.wall_s + SKEW_S for facts in known):
            return ""
    return f"none of these attempts began while the run of {files.timing} was running"


def short_lines(profile: RunProfile) -> Iterator[str]:
    """The two or three lines that are shown at the end of a run."""
    if not profile.has_steps:
        return
    summary = profile.summary
    shares = list(summary.shares().items())[:FIRST_SHARES]
    shown = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)
    yield f"time:     {shown}; {_running(profile)}"
    for line in profile.finding.lines() if profile.finding.setting else ():
        yield f"          {line}"


def screen_lines(profile: RunProfile, files: RunFiles) -> Iterator[str]:
    """The whole screen."""
    summary = profile.summary
    notes = []
    if summary.skipped:
        number = summary.skipped
        lines = "1 line does not hold steps and was" if number == 1 else f"{number} lines are not steps and were"
        notes.append(f"{files.steps}: {lines} skipped")
    if not profile.has_steps:
        yield from notes
        yield from _without_steps(files, profile.facts)
        return
    if profile.foreign:
        notes.append(f"these are the steps of another run: {profile.foreign}")
        finding = ["nothing is concluded from the steps of another run"]
    else:
        notes += _mismatch(summary, files)
        finding = list(profile.finding.lines())
    shown = shown_times(summary, profile.facts)
    yield from run_lines({"name": str(files.rollouts), "notes": notes, "finding": finding, **shown}, WIDTH)


def _mismatch(summary: TimeSummary, files: RunFiles) -> Iterator[str]:
    """Say so if the steps can't be those of the rollouts. Large files are not counted, because that takes too long."""
    try:
        if files.rollouts.stat().st_size > COUNTED_BYTES:
            return
        rollouts = _lines(files.rollouts)
    except OSError:
        return
    if rollouts != summary.completed:
        yield (
            f"{files.rollouts} has {rollouts} rollouts: the others have no steps, or these are of another run"
            if rollouts > summary.completed
            else f"{files.rollouts} has {rollouts} rollouts: the run was cut off, or these are the steps of another run"
        )


def _lines(path: Path) -> int:
    with open_lines(path) as file:
        return sum(1 for _ in file)


def _running(profile: RunProfile) -> str:
    summary, facts = profile.summary, profile.facts
    rate = summary.attempts / summary.wall_s if summary.wall_s else 0.0
    limit = f" of {facts.limit}" if facts is not None and facts.limit else ""
    return f"{summary.at_once:.1f}{limit} at once, {rate:.3g} rollouts a second"


def _without_steps(files: RunFiles, facts: RunFacts | None) -> Iterator[str]:
    yield f"{files.steps} does not exist or holds no steps, so it is unknown what the rollouts spent their time on"
    if facts is not None and facts.wall_s:
        yield f"{facts.completed} rollouts in {facts.wall_s:.1f} s, {facts.completed / facts.wall_s:.3g} a second"
    else:
        yield from _from_dates(files)
    yield "steps are recorded with +steps=true"


def _from_dates(files: RunFiles) -> Iterator[str]:
    """What the modification times of the files reveal about a run that recorded nothing else."""
    first, last = (_modified(path) for path in (files.plan, files.rollouts))
    if first is None or last is None:
        return
    rollouts = _lines(files.rollouts)
    seconds = max(0.0, last - first)
    finished = datetime.fromtimestamp(last).astimezone()
    yield (
        f"{rollouts} rollouts, the last one on {finished:%Y-%m-%d %H:%M}, {seconds:.0f} s after the plan was written"
        + (f": {rollouts / seconds:.3g} a second, if it was never interrupted" if seconds >= 1 else "")
    )


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
