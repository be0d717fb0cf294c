"""What a run leaves a person to read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_gym.rollouts.store.files import RunFiles
from nemo_gym.rollouts.tally import Ending, ExitCode, Tally, failure_table

if TYPE_CHECKING:
    from nemo_gym.rollouts.aggregate import AgentMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a run went and where everything is."""

    files: RunFiles
    planned: int
    done_before: int
    given_up_before: int
    tally: Tally
    metrics: Sequence["AgentMetrics"] = ()
    has_metrics_file: bool = False

    @property
    def completed(self) -> int:
        """Rollouts of the plan that are on disk, from this run and earlier ones."""
        return self.done_before + self.tally.completed

    @property
    def exit_code(self) -> ExitCode:
        """What to tell the shell."""
        return self.tally.exit_code(still_owed=self.planned - self.completed)

    def text(self) -> str:
        """Some lines for the end of a run."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if table := failure_table(self.tally):
            yield from (table, "")
        yield f"{self.completed} of {self.planned} rollouts completed{self._shortfall()}"
        if self.tally.ending is not Ending.FINISHED:
            yield f"stopped: {self.tally.reason or self.tally.ending}"
        if spent := self.tally.spending.text():
            yield f"spent:    {spent}"
        yield f"plan:     {self.files.plan}"
        yield f"rollouts: {self.files.rollouts}"
        if self.tally.failures:
            yield f"failures: {self.files.failures}"
        yield f"metrics:  {self.files.metrics if self.has_metrics_file else None}"
        if self.completed < self.planned:
            yield "To run what is left: the same command with +resume_from_cache=true"

    def _shortfall(self) -> str:
        counts = {
            "failed": self.tally.failed,
            "vanished": self.tally.vanished,
            "given up earlier": self.given_up_before,
        }
        counts["not run"] = self.planned - self.completed - sum(counts.values())
        told = ", ".join(f"{count} {what}" for what, count in counts.items() if count > 0)
        return f" ({told})" if told else ""
