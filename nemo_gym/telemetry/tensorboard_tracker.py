"""TensorBoard as a tracker: event files with progress and metrics, in a folder beside the output.

The files are written by tensorboardX, which needs neither TensorBoard nor TensorFlow. This module needs the extra
``tensorboard`` and is imported only if the tracker is named.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from tensorboardX import SummaryWriter

from nemo_gym.io.files import run_stem
from nemo_gym.telemetry.trackers import Metrics, TrackedRun, Tracker

FOLDER: Final = "tensorboard"


def events_folder(output: Path) -> Path:
    """The folder for the events of one session of a run; ``tensorboard --logdir`` takes the one that all share."""
    # Each session of a resumed run gets a new folder, because TensorBoard would mix their events.
    return output.parent / FOLDER / run_stem(output) / datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")


class TensorBoardTracker(Tracker):
    """Writes the events of one session."""

    def __init__(self, run: TrackedRun) -> None:
        self._writer = SummaryWriter(str(events_folder(run.files.rollouts)), flush_secs=10)
        settings = json.dumps(run.settings, indent=2, ensure_ascii=False)
        self._writer.add_text("parameters", "".join(f"    {line}\n" for line in settings.splitlines()))

    def log_progress(self, metrics: Metrics, step: int) -> None:
        for name, value in metrics.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, float(value), step)

    def log_metrics(self, metrics: Metrics) -> None:
        self.log_progress(metrics, step=0)

    def log_files(self, files: Sequence[Path]) -> None:
        """Note which files the run has: TensorBoard can't show them."""
        self._writer.add_text("files", "".join(f"- `{path}`\n" for path in files))

    def log_rollouts(self, rollouts: Path) -> None:
        self._writer.add_text("rollouts", f"`{rollouts}`")

    def close(self) -> None:
        self._writer.close()
