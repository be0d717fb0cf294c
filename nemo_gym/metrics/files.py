"""Files that are replaced as a whole, so that a reader sees the old content or the new, never a part."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

_BUFFER: Final = 1 << 20


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file anew. It takes its place once it is complete and on disk; an exception leaves no trace."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb", buffering=_BUFFER) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
