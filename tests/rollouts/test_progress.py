import io
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.rollouts.progress import Milestones, Progress
from nemo_gym.rollouts.store.history import AttemptPolicy
from nemo_gym.rollouts.store.outcome import Completed, Failed, Failure, PlannedRollout
from nemo_gym.rollouts.store.plan_file import PlanOnDisk
from nemo_gym.rollouts.tally import Tally

Make = Callable[..., PlannedRollout]


@dataclass
class Load:
    in_flight: int = 2
    allowed: int = 4
    notice: str = ""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plan(*, owed: int, done: int = 0) -> PlanOnDisk:
    plan = PlanOnDisk(Path("plan"), AttemptPolicy(), planned=owed + done, done=done)
    for position in range(owed):
        plan.owe(position, "alpha")
    return plan


def advance(progress: Progress, tally: Tally, *outcomes: Completed | Failed) -> None:
    tally.add(outcomes)
    progress.advance(outcomes, tally, Load())


def test_the_last_line_is_the_bar_of_a_finished_run(planned: Make) -> None:
    stream, tally = io.StringIO(), Tally()
    progress = Progress(plan(owed=10), stream, clock=Clock())
    for n in range(10):
        advance(progress, tally, Completed(planned(n), b"", 0.1, float(n % 2)))
    progress.close()
    last = stream.getvalue().splitlines()[-1]
    assert re.match(r"\d\d:\d\d:\d\d Collecting rollouts: 100%, 10/10, [\d.e+]+/s, reward=", last)
    assert "reward=0.500" in last
    assert "running=2/4" in last


def test_a_terminal_gets_the_same_bar(planned: Make) -> None:
    stream, tally = Terminal(), Tally()
    progress = Progress(plan(owed=2), stream)
    for n in range(2):
        advance(progress, tally, Completed(planned(n), b"", 0.1, 1.0))
    progress.tick(tally, Load())
    progress.close()
    assert "Collecting rollouts: 100%|" in stream.getvalue()
    assert "2/2" in stream.getvalue()


def test_lines_about_each_agent_are_only_for_several_of_them(planned: Make) -> None:
    for stream in (Terminal(), io.StringIO()):
        tally = Tally()
        progress = Progress(plan(owed=10), stream, clock=Clock())
        for n in range(10):
            advance(progress, tally, Completed(planned(n), b"", 0.1, 1.0))
            progress.tick(tally, Load())
        progress.close()
        assert "Examples left" not in stream.getvalue()


def test_without_a_terminal_there_is_a_line_every_half_minute_even_if_nothing_ends() -> None:
    clock, stream, tally = Clock(), io.StringIO(), Tally()
    progress = Progress(plan(owed=10), stream, clock=clock)
    for second in range(100):
        clock.now = float(second)
        progress.tick(tally, Load())
    assert stream.getvalue().count("Collecting rollouts: 0%, 0/10, running=2/4\n") == 3


def test_a_resumed_run_starts_where_the_last_one_stopped(planned: Make) -> None:
    stream, tally = io.StringIO(), Tally()
    progress = Progress(plan(owed=10, done=30), stream, clock=Clock())
    advance(progress, tally, Completed(planned(0), b"", 0.1, 1.0))
    progress.close()
    assert "31/40" in stream.getvalue()


def test_the_bar_counts_only_what_completed(planned: Make) -> None:
    stream, tally = io.StringIO(), Tally()
    progress = Progress(plan(owed=2), stream, clock=Clock())
    failure = Failure(kind="timeout", message="", transient=True)
    advance(progress, tally, Failed(planned(0, attempt=1, last=2), b"", 0.1, failure))
    advance(progress, tally, Failed(planned(0, attempt=2, last=2), b"", 0.1, failure))
    progress.close()
    assert "0/2" in stream.getvalue()
    assert "failed=1, retried=1" in stream.getvalue()


def test_a_paused_run_shows_how_long_it_still_waits(planned: Make) -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(plan(owed=2), stream, clock=clock)
    clock.now = 60.0
    progress.tick(Tally(), Load(notice="paused, gives up in 540 s"))
    assert "running=2/4, paused, gives up in 540 s" in stream.getvalue()


def test_milestones_name_the_agents_with_most_left() -> None:
    left = Counter({f"agent{n}": n for n in range(1, 8)})
    milestones = Milestones(total=28, done=0, left=left)
    assert milestones.advance(Counter(agent7=2)) is None
    text = milestones.advance(Counter(agent7=4))
    assert text is not None
    assert text.splitlines()[:3] == ["Examples left:", "1. agent6: 6", "2. agent5: 5"]
    assert len(text.splitlines()) == 6


def test_milestones_of_a_resumed_run_count_what_is_done_without_announcing_it_again() -> None:
    milestones = Milestones(total=100, done=50, left=Counter(alpha=50))
    assert milestones.advance(Counter(alpha=1)) is None
    assert milestones.advance(Counter(alpha=9)) is not None
    assert milestones.advance(Counter(alpha=40)) is None, "nothing is left to tell"
