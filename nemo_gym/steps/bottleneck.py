"""Finds what limited a run and the one setting to change. Pure: takes a summary and facts, returns a finding.

Wrong advice is worse than no advice, so causes that distort other figures are checked first: a blocked event loop or a
saturated processor makes every call look slow, and waiting at our own limits makes an endpoint look slow. A cause is
named only together with the figure that shows it; if no figure shows one, the finding says that nothing stands out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nemo_gym.steps.facts import RunFacts
from nemo_gym.steps.summary import StepTimes, TimeSummary

MOST: Final = 0.5  # share of the time from which something dominates the run
LARGE: Final = 0.3  # share of the time that is worth reporting
FULL: Final = 0.85  # share of one processor from which it counts as saturated
REACHED: Final = 0.7  # share of the limit on rollouts from which the limit counts as reached
SLOWER: Final = 2.0  # a server whose calls take this many times as long under load is at its capacity
FEWEST_CALM: Final = 2  # calls with few others at the same time that show how fast an endpoint can be
FEWEST: Final = 4  # with fewer attempts or calls than this, nothing is concluded


class Cause(StrEnum):
    """What limited a run."""

    ENDPOINT = "the endpoint"
    LATENCY = "the model's latency"
    LIMIT = "the number of rollouts at once"
    RATE_LIMIT = "the endpoint's rate limit"
    SLOTS = "the model server's own limit"
    CONNECTIONS = "connections"
    TOOL = "a tool"
    VERIFICATION = "verification"
    JUDGE = "the judge"
    SEEDING = "seeding"
    AGENT = "the agent's own code"
    BLOCKING = "blocking code"
    CPU = "the processor"
    DISK = "the disk"
    FAILURES = "failed attempts"
    NOTHING = "nothing that stands out"


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A cause, the figure that shows it, and what to do."""

    cause: Cause
    figure: str
    setting: str

    def lines(self) -> Iterator[str]:
        """The finding as lines of text."""
        yield f"limited by {self.cause}: {self.figure}"
        if self.setting:
            yield f"to change it: {self.setting}"


def find_bottleneck(summary: TimeSummary, facts: RunFacts | None = None) -> Bottleneck:
    """The first cause that the figures show, starting with the causes that distort other figures."""
    if summary.attempts < FEWEST:
        few = "1 attempt is" if summary.attempts == 1 else f"{summary.attempts} attempts are"
        return Bottleneck(Cause.NOTHING, f"{few} too few to tell", "")
    if not summary.seconds:
        return Bottleneck(Cause.NOTHING, "it is unknown how long the attempts took", "")
    checks: tuple[Callable[[TimeSummary, RunFacts], Bottleneck | None], ...] = (
        _failures,
        _disk,
        _blocking,
        _processor,
        _waiting,
        _work,
    )
    known = facts or RunFacts()
    found = (check(summary, known) for check in checks)
    return next((finding for finding in found if finding is not None), _nothing(summary))


def _nothing(summary: TimeSummary) -> Bottleneck:
    largest = next(iter(summary.shares().items()), ("", 0.0))
    return Bottleneck(Cause.NOTHING, f"the largest share is {largest[0]} with {largest[1]:.0%}", "")


# ---- causes that distort other figures -------------------------------------------------------------------------------
def _failures(summary: TimeSummary, _: RunFacts) -> Bottleneck | None:
    share = summary.failed_s / summary.seconds
    if share < MOST:
        return None
    kind, number = max(summary.failures.items(), key=lambda item: item[1])
    return Bottleneck(
        Cause.FAILURES,
        f"{share:.0%} of the time went into attempts that failed, {number} of them with {kind or 'no class'}",
        "look at the failures file before anything else; speed is not the problem",
    )


def _disk(_: TimeSummary, facts: RunFacts) -> Bottleneck | None:
    share = facts.append_s / facts.wall_s if facts.wall_s else 0.0
    if share < LARGE:
        return None
    return Bottleneck(
        Cause.DISK,
        f"{share:.0%} of the run ({facts.append_s:.1f} s) was spent writing results",
        "put output_jsonl_fpath on a faster disk",
    )


def _blocking(summary: TimeSummary, facts: RunFacts) -> Bottleneck | None:
    """Server code that blocks the event loop, whether it computes or only waits.

    A handler that awaits lets other handlers run; one that does not runs alone until it returns. The shortest call of a
    kind estimates how long the handler itself takes, because longer calls may include waiting for others. The calls
    that a handler makes, such as those of a judge, are not its own time.
    """
    if summary.concurrency < 2 or not summary.wall_s:
        return None
    ours = [times for times in summary.steps if times.kind in _OWN and times.count >= FEWEST]
    times = max(ours, key=_least_own_s, default=None)
    if times is None:
        return None
    least = _least_own_s(times)
    share = least / summary.wall_s
    blocked = facts.blocked_s / facts.wall_s if facts.wall_s else 0.0
    # Calls that take turns may also do so for other reasons, unless the loop was late for about as long.
    enough = LARGE if blocked >= LARGE else MOST
    alone = times.alone >= FULL and times.own_s >= enough * summary.wall_s
    if not alone and (blocked < MOST or share < LARGE):
        return None
    figure = (
        f"{times.name} of {times.server} takes at least {least / times.count:.3g} s and lets nothing else run, "
        f"{times.count} times: {min(share, 1):.0%} of the run"
    )
    if facts.fullest >= MOST:  # the code computes; code that sleeps or waits would not be ready to run
        return Bottleneck(Cause.CPU, figure, _more_processes(facts))
    advice = f"isolation: process with num_workers for {times.server}; or await in its code, or use a thread"
    return Bottleneck(Cause.BLOCKING, figure, advice)


_OWN: Final = ("seed", "tool", "verify")


def _least_own_s(times: StepTimes) -> float:
    """The time that all calls of a kind took at least, without the calls that they made."""
    return min(times.spread.least * times.count, times.own_s)


def _processor(summary: TimeSummary, facts: RunFacts) -> Bottleneck | None:
    if facts.fullest < FULL:
        return None
    whose = "process of ng_run" if facts.servers_are_busiest else "of our processes"
    figure = f"the busiest {whose} had something to compute {min(facts.fullest, 1):.0%} of the time"
    if facts.processes and facts.cores and not facts.servers_are_busiest:
        figure += f"; {facts.cpu:.1f} of {facts.cores} processors in use by us"
    ran, ready = facts.busiest.cpu_s, facts.busiest.ready_s
    # Ready for much longer than it ran: other programs compete for the processors.
    if ready > 2 * ran:
        return Bottleneck(Cause.CPU, f"{figure}; it got a processor for only {ran / ready:.0%} of that", _CROWDED)
    heaviest = next(
        (times for times in summary.steps if times.alone >= FULL and times.own_s >= LARGE * facts.wall_s), None
    )
    if heaviest is not None:
        figure += f"; {heaviest.name} of {heaviest.server} alone took {heaviest.own_s:.1f} s"
    return Bottleneck(Cause.CPU, figure, _more_processes(facts))


_CROWDED: Final = "other programs also use that machine: stop them, or collect elsewhere"


def _more_processes(facts: RunFacts) -> str:
    if facts.servers_are_busiest:
        return "isolation: process with num_workers for its busiest server; or collect without ng_run, +workers=auto"
    if facts.cores and len(facts.processes) >= facts.cores:
        return "all processors are in use: split the tasks over several machines and aggregate their outputs"
    return "+workers=auto, which runs the Gym in one process for each processor"


# ---- waiting at limits -----------------------------------------------------------------------------------------------
def _waiting(summary: TimeSummary, _: RunFacts) -> Bottleneck | None:
    for times in summary.steps:
        for cause, seconds in sorted(_causes_of_waiting(times).items(), key=lambda item: -item[1]):
            # More slots for an endpoint that is at its capacity would only move the queue there.
            if seconds / summary.seconds >= LARGE and not (cause == "slot" and _is_crowded(times)):
                return _wait(times, cause, seconds / summary.seconds)
    return None


def _is_crowded(times: StepTimes) -> bool:
    """Whether a server takes longer for its calls when it gets many at once."""
    return bool(times.idle_s) and times.busy_s >= SLOWER * times.idle_s


def _refusals(times: StepTimes) -> int:
    """How often an endpoint replied that it was busy."""
    return sum(number for failed, number in times.retries.items() if failed in _BUSY)


def _causes_of_waiting(times: StepTimes) -> dict[str, float]:
    """The seconds that calls waited, by cause. A busy endpoint makes calls wait both at the gate and before retries."""
    waited = dict(times.waited)
    if "retry" in waited and _refusals(times) * 2 >= sum(times.retries.values()):
        waited["gate"] = waited.get("gate", 0.0) + waited.pop("retry")
    return waited


_BUSY: Final = ("429", "503", "529")


def _wait(times: StepTimes, cause: str, share: float) -> Bottleneck:
    figure = f"{share:.0%} of the time of all rollouts was spent waiting to call {times.server}"
    if cause == "gate":
        return Bottleneck(
            Cause.RATE_LIMIT,
            f"{figure}; it refused {_refusals(times)} calls because of its rate limit",
            "ask the endpoint's operator for a higher rate; more rollouts at once will not help",
        )
    if cause == "slot":
        return Bottleneck(
            Cause.SLOTS,
            f"{figure}, because its max_concurrent_requests were running already",
            f"raise max_concurrent_requests of {times.server}, or leave it out",
        )
    if cause == "connection":
        return Bottleneck(Cause.CONNECTIONS, figure, "raise global_aiohttp_connector_limit_per_host")
    failed = max(times.retries.items(), key=lambda item: item[1], default=("", 0))
    return Bottleneck(
        Cause.ENDPOINT,
        f"{figure} again after {failed[1]} attempts failed with {failed[0] or 'an error'}",
        f"look at the log of the endpoint behind {times.server}",
    )


# ---- what the rollouts do --------------------------------------------------------------------------------------------
def _work(summary: TimeSummary, facts: RunFacts) -> Bottleneck | None:
    parts: dict[str, float] = {}
    for times in summary.steps:
        parts[times.kind] = parts.get(times.kind, 0.0) + times.own_s
    parts["agent"] = summary.other_s
    kind, seconds = max(parts.items(), key=lambda item: item[1])
    share = seconds / max(summary.seconds, sum(parts.values()))
    if share < MOST and kind not in ("model", "judge"):
        return None
    if kind in ("agent", "call"):
        return Bottleneck(
            Cause.AGENT,
            f"{share:.0%} of the time lies between the calls of the rollouts",
            "+profiling_enabled=true +profiling_results_dirpath=profile shows which code that is",
        )
    times = next(times for times in summary.steps if times.kind == kind)
    if kind == "model":
        return _model(summary, facts, times, share)
    return _own_server(times, share)


def _own_server(times: StepTimes, share: float) -> Bottleneck:
    causes = {"tool": Cause.TOOL, "verify": Cause.VERIFICATION, "judge": Cause.JUDGE, "seed": Cause.SEEDING}
    spread = times.spread
    figure = f"{share:.0%} of the time of all rollouts; {times.name} took {spread.p50:.3g} s (p95 {spread.p95:.3g} s)"
    crowded = _is_crowded(times)
    if crowded:
        figure += f", {times.idle_s:.3g} s when few ran at once"
    if times.kind == "judge":
        advice = "give the judge's endpoint more capacity" if crowded else "use a faster judge, or shorter completions"
    elif crowded:
        advice = f"isolation: process with num_workers for {times.server}"
    else:
        advice = f"make {times.name} of {times.server} faster; until then num_samples_in_parallel can hide it"
    return Bottleneck(causes.get(times.kind, Cause.TOOL), figure, advice)


def _model(summary: TimeSummary, facts: RunFacts, times: StepTimes, share: float) -> Bottleneck | None:
    spread = times.spread
    figure = f"{share:.0%} of the time of all rollouts; a call of {times.server} took {spread.p50:.3g} s"
    rate = times.count / summary.wall_s if summary.wall_s else 0.0
    if _is_crowded(times):
        # Little's law: so many calls at once reach the same rate if each takes as long as without load. Besides them
        # there are the rollouts that do something else at that moment.
        others_s = max(0.0, (1 - share) * summary.seconds - sum(times.waited.values()))
        elsewhere = others_s / summary.wall_s if summary.wall_s else 0.0
        enough = max(1, round(rate * times.idle_s + elsewhere))
        return Bottleneck(
            Cause.ENDPOINT,
            f"{figure}, {times.idle_s:.3g} s when few ran at once and {times.busy_s:.3g} s when many did: "
            f"it completes at most {rate:.3g} calls a second",
            f"give the endpoint more capacity; num_samples_in_parallel={enough} would be as fast",
        )
    if share < LARGE:
        return None
    limit, at_limit = _limit(summary, facts)
    if at_limit:
        return _at_limit(f"{summary.at_once:.1f} of {limit} rollouts ran at once", times, limit)
    return Bottleneck(
        Cause.LATENCY,
        f"{figure} (p95 {spread.p95:.3g} s), and {limit or summary.peak} rollouts at once were allowed",
        "a faster model or endpoint, or a lower responses_create_params.max_output_tokens",
    )


def _at_limit(figure: str, times: StepTimes, limit: int) -> Bottleneck:
    # Calls that begin together share the load, so only calls with few others until their end show how fast it can be.
    if times.idle_s and times.calm >= FEWEST_CALM:
        more = f"+num_samples_in_parallel={2 * limit}, or auto"
        return Bottleneck(Cause.LIMIT, f"{figure}, which did not slow the endpoint down", more)
    return Bottleneck(
        Cause.LIMIT,
        f"{figure}; whether the endpoint can take more is unknown, because no call ran with few others",
        "+num_samples_in_parallel=auto, which finds out how many rollouts at once are best",
    )


def _limit(summary: TimeSummary, facts: RunFacts) -> tuple[int, bool]:
    """How many rollouts were allowed at once, and whether that limit kept others waiting."""
    limit = facts.limit or (summary.peak if summary.attempts >= 3 * summary.peak else 0)
    had_more = summary.attempts - summary.peak >= 0.2 * summary.attempts
    return limit, bool(limit) and not facts.adaptive and had_more and summary.at_once >= REACHED * limit
