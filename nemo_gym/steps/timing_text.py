"""Where time went, as lines for a terminal: of a run (``shown_times``, and what else is known) and of one rollout.

``ng_profile`` and the terminal viewer print the same lines. Figures that can't be determined are left out.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from nemo_gym.io.terminal_text import printable

_NAME: Final = 26  # characters for the name of a step beside a bar
_STEP: Final = 32  # and in a table
_TIME: Final = 9
_RATE: Final = 14
_MOST: Final = 17  # characters for the spaces around a line of levels and its highest value
_NARROWEST: Final = 12  # characters for the bars, at least
_SHARES: Final = 12
_GROUPS: Final = 20
_STEPS: Final = 2_000  # of one rollout that are shown, at most
_DEEPEST: Final = 6
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_WORK, _WAIT, _RETRY = "█", "░", "!"


def waterfall_lines(timing: Mapping[str, Any], width: int) -> Iterator[str]:
    """The waterfall of one rollout."""
    if "missing" in timing:
        yield printable(f"no times: {timing['missing']}")
        return
    steps, end = timing["steps"], timing["end"] or 1.0
    yield f"{duration_text(timing['duration'])} in {len(steps)} call{'s' if len(steps) != 1 else ''}"
    yield printable(", ".join(f"{each['name']} {each['share']:.1%}" for each in timing["shares"][:_SHARES]))
    yield f"{_WORK} working  {_WAIT} waiting  {_RETRY} an attempt failed and was repeated"
    yield ""
    room = max(_NARROWEST, width - _NAME - _TIME - _RATE - 3)
    for step in steps[:_STEPS]:
        name = f"{'  ' * min(step['depth'], _DEEPEST)}{printable(step['label'])}"
        rate = f"{step['tokens_per_s']:.3g} tokens/s" if "tokens_per_s" in step else ""
        bar = _bar(step, end, room)
        yield f"{name[:_NAME]:<{_NAME}} {bar} {duration_text(step['duration']):>{_TIME}} {rate:>{_RATE}}".rstrip()
        for retry in step.get("retries", ())[:_GROUPS]:
            yield printable(
                f"{'':<{_NAME}} repeated after {retry['failed'] or 'a failure'} at {duration_text(retry['at'])}"
            )
    if len(steps) > _STEPS:
        yield f"… and {len(steps) - _STEPS} more"


def _bar(step: Mapping[str, Any], end: float, room: int) -> str:
    """A step as a bar within a line; even the shortest step is visible."""
    first = min(room - 1, int(step["start"] / end * room))
    last = max(first + 1, min(room, round((step["start"] + step["duration"]) / end * room)))
    waited = round((last - first) * min(1.0, step.get("waited", 0.0) / step["duration"])) if step["duration"] else 0
    line = list(f"{'':<{first}}{_WAIT * waited}{_WORK * (last - first - waited)}".ljust(room))
    for retry in step.get("retries", ()):
        line[min(room - 1, int(retry["at"] / end * room))] = _RETRY
    return "".join(line)


def run_lines(timing: Mapping[str, Any], width: int) -> Iterator[str]:
    """The times of a run."""
    yield printable(timing["name"])
    yield from map(printable, timing["notes"])
    if not timing["attempts"]:
        if not timing["notes"]:
            yield "no attempt is selected"
        return
    yield from _figures(timing)
    yield from timing["usage"]
    yield ""
    room = max(_NARROWEST, width - _NAME - 9)
    for each in timing["shares"][:_SHARES]:
        bar = _WORK * round(room * each["share"])
        yield f"{printable(each['name'])[:_NAME]:<{_NAME}} {each['share']:>6.1%}  {bar}".rstrip()
    yield ""
    yield from map(printable, timing["finding"])
    yield from _over_time(timing.get("over_time"), width)
    yield ""
    yield from _table("step", [_whole(timing), *timing["steps"]])
    if timing["servers"]:
        yield ""
        yield from _table("server", timing["servers"])
    if timing.get("slowest"):
        yield from _slow("slowest rollouts", timing["slowest"])
    tail = timing.get("tail")
    if tail and tail["rollouts"]:
        title = f"stragglers: {duration_text(tail['seconds'])} of the run ({tail['share']:.0%}) after 95% had ended"
        yield from _slow(title, tail["rollouts"])


def _figures(timing: Mapping[str, Any]) -> Iterator[str]:
    spread, limit = timing["spread"], f" of {timing['limit']}" if timing["limit"] else ""
    failed = ", ".join(f"{number} {printable(kind) or 'unnamed'}" for kind, number in timing["failures"].items())
    attempts = "1 attempt" if timing["attempts"] == 1 else f"{timing['attempts']} attempts"
    breaks = f" without {duration_text(timing['break_s'])} in which nothing ran" if timing["break_s"] else ""
    wall = duration_text(timing["wall_s"])
    yield f"{attempts}, {timing['completed']} completed{f' ({failed})' if failed else ''}, in {wall}{breaks}"
    rate = f", {timing['rate']:.3g} rollouts a second" if timing["rate"] else ""
    yield f"{timing['at_once']:.1f}{limit} at once, at most {timing['peak']}{rate}"
    yield (
        f"a rollout took {duration_text(spread['p50'])} (median), {duration_text(spread['p95'])} (95%), "
        f"{duration_text(spread['most'])} at most"
    )
    mean, most = timing["seconds"] / timing["attempts"], min(timing["limit"], timing["attempts"])
    if most > 1 and mean and timing["rate"]:
        yield (
            f"at {duration_text(mean)} on average, {most} at once would be {most / mean:.3g} a second; "
            f"{timing['rate']:.3g} were reached"
        )
    if timing["blocked"] is not None:
        yield f"the event loop was late for {duration_text(timing['blocked_s'])} ({timing['blocked']:.1%} of the time)"


def _whole(timing: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rollouts themselves, in the form of a kind of call."""
    failed = timing["attempts"] - timing["completed"]
    own = {"kind": "rollout", "server": "", "tool": "", "count": timing["attempts"], "failed": failed}
    return {**own, "waited_s": timing["waited_s"], **timing["spread"]}


def _over_time(found: Mapping[str, Any] | None, width: int) -> Iterator[str]:
    if found is None:
        return
    room = max(_NARROWEST, width - _NAME - _MOST)
    yield ""
    for name, values in (("at once, over time", found["at_once"]), ("ending per second", found["finished_per_s"])):
        most = max(values) or 1.0
        drawn = "".join(_LEVELS[round((len(_LEVELS) - 1) * value / most)] for value in _means(values, room))
        yield f"{name:<{_NAME}} {drawn}  {max(values):.3g} at most"


def _means(values: Sequence[float], most: int) -> list[float]:
    """At most that many values: the means of spans of equal length, so that the last is still the end of the run."""
    count = min(most, len(values))
    edges = [len(values) * place // count for place in range(count + 1)]
    return [sum(values[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]


def _table(by: str, groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    heads = ("calls", "failed", "median", "95%", "99%", "longest", "waited")
    yield f"{by:<{_STEP}} " + " ".join(f"{head:>{_TIME}}" for head in heads)
    for group in groups[:_GROUPS]:
        name = group["server"] if by == "server" else f"{group['kind']} {group['tool'] or group['server']}".strip()
        times = [duration_text(group[field]) for field in ("p50", "p95", "p99", "most")]
        waited = duration_text(group["waited_s"]) if group["waited_s"] else ""
        cells = (str(group["count"]), str(group["failed"] or ""), *times, waited)
        yield (f"{printable(name)[:_STEP]:<{_STEP}} " + " ".join(f"{cell:>{_TIME}}" for cell in cells)).rstrip()
    if len(groups) > _GROUPS:
        yield f"… and {len(groups) - _GROUPS} more"


def _slow(title: str, rollouts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield ""
    yield title
    for each in rollouts:
        mostly = f"mostly {each['mostly']['name']} ({each['mostly']['share']:.0%})" if each["mostly"] else ""
        outcome = "" if each["outcome"] == "completed" else f"{each['outcome']}, "
        name = f"{each['id'] or ''} task {each['task']}, rollout {each['rollout']}".strip()
        yield printable(f"  {name:<{_NAME}} {duration_text(each['duration']):>{_TIME}}  {outcome}{mostly}".rstrip())


def duration_text(value: float) -> str:
    """Format a duration briefly."""
    if value >= 100:
        return f"{value:.0f} s"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{1000 * value:.3g} ms" if value >= 1e-3 or not value else f"{1e6 * value:.3g} µs"
