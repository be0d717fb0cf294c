"""Where the time of a run or of one rollout went, for the page, the exported page and the terminal.

The numbers of a run come from ``nemo_gym.steps``, like those that ``ng_profile`` prints. Steps are matched with rows by
task, rollout and agent: the completed attempt belongs to the rollout, and the n-th failed attempt to its n-th row among
the failures. A steps file that is missing, damaged or from another run is reported in ``notes`` and is never an error.
"""

from typing import Any, Final

import numpy as np

from nemo_gym.metrics.table import Ints
from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.steps.bottleneck import find_bottleneck
from nemo_gym.steps.facts import longest_session, read_facts
from nemo_gym.steps.rollout_steps import COMPLETED, RolloutSteps
from nemo_gym.steps.summary import Floats, shown_times
from nemo_gym.steps.totals import summarise
from nemo_gym.view.index.steps_index import AttemptColumns
from nemo_gym.view.library import Snapshot, ViewedRun
from nemo_gym.view.listing import id_of
from nemo_gym.view.rollout_files import Part, decode_row, encode_row
from nemo_gym.view.selection import Selection
from nemo_gym.view.waterfall import waterfall

MOST_SHOWN: Final = 10  # slow rollouts
_BINS: Final = 80
_FEWEST_BINS: Final = 12
_IN_A_BIN: Final = 6  # attempts on average; with fewer, a rate would be mostly noise
_NEARLY_ALL: Final = 0.95  # of the attempts; the rest are stragglers
_FEW_MATCH: Final = 0.5


def run_timing(selection: Selection, number: int, *, whole: bool) -> dict[str, Any]:
    """Where the time of the selected rollouts of one file went. ``whole`` means that no filter is active."""
    run = selection.snapshot.runs[number]
    attempts = run.steps.attempts()
    known = _matched(selection.snapshot, run, attempts)
    head = {"run": number, "name": run.name, "file": run.steps.path.name, "read": _share_read(run)}
    reason = _unusable(run, attempts, known)
    if reason:
        return head | {"notes": [reason], "attempts": 0}
    chosen = np.arange(len(attempts)) if whole else _chosen(selection, run, attempts)
    totals = run.steps.totals() if whole else run.steps.totals_of(chosen)
    facts = longest_session(read_facts(run.files.timing)) if whole else None
    return (
        head
        | {"notes": _notes(selection.snapshot, run, attempts, known)}
        | shown_times(totals.summary, facts, totals.servers)
        | {
            "slowest": _slowest(selection.snapshot, run, attempts, chosen),
            "tail": _tail(selection.snapshot, run, attempts, chosen),
            "over_time": _over_time(attempts, chosen),
            "finding": list(find_bottleneck(totals.summary, facts).lines()) if whole else [],
        }
    )


def rollout_timing(snapshot: Snapshot, code: int, agent: str | None) -> dict[str, Any]:
    """The waterfall of one row, or the reason why it has none."""
    part_number, row = decode_row(code)
    part = snapshot.parts[part_number]
    run = snapshot.runs[part.source.run]
    if not run.steps.state.exists:
        return {"missing": _no_file(run)}
    attempts = run.steps.attempts()
    number = _attempt_of(part, row, attempts)
    record = next(run.steps.records(np.array([number])), None) if number is not None else None
    if record is None:
        reading = " so far; it is still being read" if _share_read(run) < 1 else ""
        return {"missing": f"{run.steps.path.name} has no steps of this rollout{reading}"}
    if agent and record.agent and record.agent != agent:
        return {"missing": f"{run.steps.path.name} is of another run: there this rollout is one of {record.agent}"}
    return waterfall(record)


# ---- whose steps -----------------------------------------------------------------------------------------------------
def _attempt_of(part: Part, row: int, attempts: AttemptColumns) -> int | None:
    """The attempt that produced a row."""
    tasks, rollouts = part.values("task").numbers, part.values("rollout").numbers
    task, rollout = tasks[row - 1], rollouts[row - 1]
    if not (np.isfinite(task) and np.isfinite(rollout)):
        return None
    numbers = attempts.of(RolloutKey(int(task), int(rollout)))
    completed = attempts.outcome[numbers] == _code(attempts, COMPLETED)
    if part.source.kind == "rollouts":
        mine = numbers[completed]
        return int(mine[-1]) if len(mine) else None
    mine = numbers[~completed]
    earlier = int(((tasks[: row - 1] == task) & (rollouts[: row - 1] == rollout)).sum())
    return int(mine[earlier]) if earlier < len(mine) else None


def _row_of(snapshot: Snapshot, run: ViewedRun, attempts: AttemptColumns, number: int) -> str | None:
    """The name of the row that an attempt produced; None if the snapshot does not have it."""
    key = RolloutKey(int(attempts.task[number]), int(attempts.rollout[number]))
    completed = attempts.outcome == _code(attempts, COMPLETED)
    found = snapshot.part(run.number, "rollouts" if completed[number] else "failures")
    if found is None:
        return None
    place, part = found
    same = (part.values("task").numbers == key.task) & (part.values("rollout").numbers == key.rollout)
    rows = np.flatnonzero(same)
    if completed[number]:
        return id_of(snapshot, encode_row(place, int(rows[-1]) + 1)) if len(rows) else None
    earlier = attempts.of(key)
    ordinal = int((~completed[earlier[earlier < number]]).sum())
    return id_of(snapshot, encode_row(place, int(rows[ordinal]) + 1)) if ordinal < len(rows) else None


def _code(attempts: AttemptColumns, name: str) -> int:
    return attempts.names.index(name) if name in attempts.names else -1


def _matched(snapshot: Snapshot, run: ViewedRun, attempts: AttemptColumns) -> int:
    """How many attempts belong to rows of the snapshot."""
    here: dict[tuple[float, float], str | None] = {}
    for kind in ("failures", "rollouts"):
        found = snapshot.part(run.number, kind)
        if found is not None:
            here.update(zip(_keys(found[1]), _texts(found[1], "agent"), strict=True))
    agents = [attempts.names[code] for code in attempts.agent.tolist()]
    keys = zip(attempts.task.tolist(), attempts.rollout.tolist(), strict=True)
    return sum(
        key in here and (not agent or here[key] in (None, agent)) for key, agent in zip(keys, agents, strict=True)
    )


def _keys(part: Part) -> list[tuple[float, float]]:
    return list(zip(part.values("task").numbers.tolist(), part.values("rollout").numbers.tolist(), strict=True))


def _texts(part: Part, name: str) -> list[str | None]:
    values = part.values(name)
    if values.codes is None:
        return [None] * len(part)
    return [values.vocabulary[code] if code >= 0 else None for code in values.codes.tolist()]


def _chosen(selection: Selection, run: ViewedRun, attempts: AttemptColumns) -> Ints:
    """The attempts of the selected rows."""
    wanted: set[tuple[float, float, str]] = set()
    for kind in ("rollouts", "failures"):
        found = selection.snapshot.part(run.number, kind)
        if found is None:
            continue
        place, part = found
        first = encode_row(place, 1)
        rows = selection.rows[(selection.rows >= first) & (selection.rows < first + len(part))] - first
        keys = _keys(part)
        outcomes = _texts(part, "failure") if kind == "failures" else [COMPLETED] * len(part)
        wanted.update((*keys[row], outcomes[row] or "") for row in rows.tolist())
    outcomes = [attempts.names[code] for code in attempts.outcome.tolist()]
    have = zip(attempts.task.tolist(), attempts.rollout.tolist(), outcomes, strict=True)
    return np.array([number for number, key in enumerate(have) if key in wanted], np.int64)


# ---- remarks about the file ------------------------------------------------------------------------------------------
def _share_read(run: ViewedRun) -> float:
    state = run.steps.state
    return min(1.0, state.position / state.bytes) if state.bytes and not state.torn else 1.0


def _no_file(run: ViewedRun) -> str:
    return f"there is no {run.steps.path.name}: it is written by runs with +steps=true"


def _unusable(run: ViewedRun, attempts: AttemptColumns, matched: int) -> str:
    """Why the steps of a run can't be used; empty if they can."""
    name = run.steps.path.name
    if not run.steps.state.exists:
        return _no_file(run)
    if not len(attempts):
        return f"{name} holds no steps" + (f" ({_lines(run)})" if run.steps.state.unreadable else "")
    return f"{name} belongs to another run: none of its attempts matches a rollout in this file" if not matched else ""


def _notes(snapshot: Snapshot, run: ViewedRun, attempts: AttemptColumns, matched: int) -> list[str]:
    name, notes = run.steps.path.name, []
    if run.steps.state.unreadable:
        notes.append(f"{name}: {_lines(run)}")
    if run.steps.state.torn and not run.live:
        notes.append(f"the last line of {name} is incomplete")
    foreign = len(attempts) - matched
    if foreign and not run.live:
        seems = "; it seems to be of another run" if matched < _FEW_MATCH * len(attempts) else ""
        notes.append(f"{foreign} of {len(attempts)} attempts in {name} are of rollouts that are not here{seems}")
    found = snapshot.part(run.number, "rollouts")
    rollouts = len(found[1]) if found is not None else 0
    untimed = rollouts - int((attempts.outcome == _code(attempts, COMPLETED)).sum())
    if untimed > 0 and not run.live and _share_read(run) == 1:
        notes.append(f"{untimed} of {rollouts} rollouts have no steps in {name}")
    return notes


def _lines(run: ViewedRun) -> str:
    count = run.steps.state.unreadable
    return f"{count} line{'s are' if count != 1 else ' is'} not steps and {'were' if count != 1 else 'was'} skipped"


# ---- slow rollouts ---------------------------------------------------------------------------------------------------
def _slowest(snapshot: Snapshot, run: ViewedRun, attempts: AttemptColumns, chosen: Ints) -> list[dict[str, Any]]:
    order = np.argsort(-attempts.duration[chosen], kind="stable")[:MOST_SHOWN]
    return [_slow(snapshot, run, attempts, int(number)) for number in chosen[order]]


def _slow(snapshot: Snapshot, run: ViewedRun, attempts: AttemptColumns, number: int) -> dict[str, Any]:
    record = next(run.steps.records(np.array([number])), None)
    return {
        "id": _row_of(snapshot, run, attempts, number),
        "task": int(attempts.task[number]),
        "rollout": int(attempts.rollout[number]),
        "outcome": attempts.names[int(attempts.outcome[number])],
        "duration": float(attempts.duration[number]),
        "mostly": _mostly(record),
    }


def _mostly(record: RolloutSteps | None) -> dict[str, Any] | None:
    """What took most of the time of an attempt."""
    shares = summarise([record]).shares() if record is not None else {}
    return next(({"name": name, "share": share} for name, share in shares.items()), None)


def _tail(snapshot: Snapshot, run: ViewedRun, attempts: AttemptColumns, chosen: Ints) -> dict[str, Any] | None:
    """How long the run continued after nearly all attempts had ended, and which attempts caused that."""
    known = chosen[attempts.started_at[chosen] > 0]
    if not len(known):
        return None
    ends = attempts.started_at[known] + attempts.duration[known]
    order = np.argsort(ends, kind="stable")
    nearly = float(ends[order[int(np.ceil(_NEARLY_ALL * len(order))) - 1]])
    last = [int(place) for place in order[::-1][:MOST_SHOWN] if ends[place] > nearly]
    wall = float(ends.max() - attempts.started_at[known].min())
    seconds = float(ends.max()) - nearly
    return {
        "seconds": seconds,
        "share": seconds / wall if wall else 0.0,
        "rollouts": [
            _slow(snapshot, run, attempts, int(known[place])) | {"late_s": float(ends[place]) - nearly}
            for place in last
        ],
    }


# ---- over time -------------------------------------------------------------------------------------------------------
def _over_time(attempts: AttemptColumns, chosen: Ints) -> dict[str, Any] | None:
    """How many attempts ran at once and how many ended per second, in equal parts of the run."""
    known = chosen[attempts.started_at[chosen] > 0]
    if not len(known):
        return None
    starts = attempts.started_at[known]
    first = float(starts.min())
    starts = starts - first
    ends = starts + attempts.duration[known]
    if not ends.max() > 0:
        return None
    # The fewer attempts, the fewer bins, because a rate of one or two attempts means nothing.
    bins = int(np.clip(len(known) // _IN_A_BIN, _FEWEST_BINS, _BINS))
    edges = np.linspace(0.0, float(ends.max()), bins + 1)
    lengths = np.diff(edges)
    # The time that attempts spent in each bin, without a loop: all time since their starts minus all since their ends.
    running = np.diff(_area(starts, edges) - _area(ends, edges)) / lengths
    finished = np.histogram(ends, edges)[0] / lengths
    return {
        "started_at": first,
        "edges": edges.tolist(),
        "at_once": np.maximum(running, 0.0).tolist(),
        "finished_per_s": finished.tolist(),
    }


def _area(moments: Floats, edges: Floats) -> Floats:
    """For each edge, the sum of its distances to all moments before it."""
    ordered = np.sort(moments)
    before = np.searchsorted(ordered, edges, side="right")
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    area: Floats = before * edges - sums[before]
    return area
