"""Front door: the names of files beside a rollout file."""

from pathlib import Path

from nemo_gym.io.files import RunFiles

__all__ = ["failures_path_for"]


def failures_path_for(path: str | Path) -> Path:
    """The file in which the failed attempts of a run are recorded."""
    return RunFiles.of(Path(path)).failures
