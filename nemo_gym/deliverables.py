"""Front door: which files in a folder of results are what an agent was asked to deliver."""

from pathlib import Path
from typing import Final

IGNORE_FILES: Final = frozenset(
    {
        "finish_params.json",
        "history.json",
        "history.pkl",
        "inprogress_history.json",
        "metadata.json",
        "log.txt",
        "reference_files",
    }
)


def is_deliverable(path: str | Path) -> bool:
    """Whether a path is a file that was delivered, and not a record of how it was made."""
    found = Path(path)
    return found.is_file() and found.name not in IGNORE_FILES
