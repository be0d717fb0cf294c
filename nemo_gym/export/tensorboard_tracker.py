"""TensorBoard as a tracker: event files with progress and metrics, in a folder beside the output.

The files are written by tensorboardX, which needs neither TensorBoard nor TensorFlow. This module needs the extra
``tensorboard`` and is imported only if TensorBoard is asked for.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tensorboardX import SummaryWriter

from nemo_gym.export.trackers import Metrics

FOLDER: Final = "tensorboard"


def events_folder(output: Path) -> Path:
    """The folder for the events of one session of a run; ``tensorboard --logdir`` takes the one that all share."""
    # Each session of a resumed run gets a new folder, because TensorBoard would mix their events.
    return output.parent / FOLDER / output.stem / datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")


class TensorBoardTracker:
    """Writes the events of one session."""

    def __init__(self, folder: Path, *, parameters: Mapping[str, Any]) -> None:
        self._writer = SummaryWriter(str(folder), flush_secs=10)
        settings = json.dumps(parameters, indent=2, ensure_ascii=False)
        self._writer.add_text("parameters", "".join(f"    {line}\n" for line in settings.splitlines()))

    def log_metrics(self, metrics: Metrics) -> None:
        """Record numbers as scalars, and strings as text."""
        self._log(metrics, 0)

    def log_progress(self, metrics: Metrics, step: int) -> None:
        """Record the current numbers under their step."""
        self._log(metrics, step)

    def log_rollouts(self, rollouts: Path) -> None:
        """Note where they are: TensorBoard can't show them."""
        self._writer.add_text("rollouts", f"`{rollouts}`")

    def log_files(self, files: Sequence[Path]) -> None:
        """Note which files the run has, for the same reason."""
        if files:
            self._writer.add_text("files", "".join(f"- `{path}`\n" for path in files))

    def close(self) -> None:
        """Write what is still buffered."""
        self._writer.close()

    def _log(self, metrics: Metrics, step: int) -> None:
        for name, value in metrics.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, float(value), step)
