"""Files that may be compressed: opened for reading, whatever their names are, because their first bytes tell.

A compressed run (``rollouts.jsonl.zst``) is a sequence of Zstandard frames, each of which holds whole lines and can be
read without the others. A frame is written in one piece, like the lines of a plain file, so what a crash tears is the
last frame. ``open_lines`` shows such a file as the text that was compressed: positions, sizes and line numbers are
those of the text, and every reader works as it does on a plain file. Bytes that are not a whole frame appear as zero
bytes, which is what a hole in a plain file looks like, so they are reported and set aside like a line that was torn.

gzip belongs to the standard library, Zstandard only from Python 3.14 on; before that, it needs the extra ``zstd``.
"""

import gzip
import io
import os
import zlib
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, cast

from nemo_gym.io.zstd_frames import ZSTD_MAGIC, FrameReader, zstandard_for

_GZIP: Final = b"\x1f\x8b"
DAMAGED: Final = (EOFError, zlib.error)  # what reading raises, besides OSError, if a compressed file is not whole
ZSTD_SUFFIX: Final = ".zst"
_BUFFER: Final = 1 << 20


def open_compressed(path: Path, *, buffering: int) -> BinaryIO:
    """Open a file and read what was compressed from its start to its end, however large its frames are."""
    with path.open("rb") as file:
        start = file.read(len(ZSTD_MAGIC))
    if start.startswith(_GZIP):
        return cast("BinaryIO", gzip.open(path, "rb"))
    if start == ZSTD_MAGIC:
        zstd = zstandard_for(path)
        if hasattr(zstd, "ZstdFile"):
            return cast("BinaryIO", zstd.open(path, "rb"))
        # The function of this library that opens files stops at the end of the first frame.
        reader = zstd.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True)
        return cast("BinaryIO", io.BufferedReader(reader, buffering))
    return path.open("rb", buffering=buffering)


def open_lines(path: Path, *, buffering: int = _BUFFER) -> BinaryIO:
    """Open a file of lines for reading at any position: its text, if it consists of frames."""
    if is_framed(path):
        return cast("BinaryIO", io.BufferedReader(FrameReader(path), buffering))
    return path.open("rb", buffering=buffering)


def open_raw_lines(path: Path) -> io.RawIOBase:
    """The same without a buffer, for those who have one."""
    return FrameReader(path) if is_framed(path) else path.open("rb", buffering=0)


def is_framed(path: Path) -> bool:
    """Whether a file consists of frames, or will if it is written to."""
    try:
        with path.open("rb") as file:
            start = file.read(len(ZSTD_MAGIC))
    except FileNotFoundError:
        start = b""
    # By its name if its beginning is missing or damaged, but a file of that name may hold plain rows.
    return start == ZSTD_MAGIC or (path.suffix == ZSTD_SUFFIX and not start.startswith(b"{"))


LineFile: TypeAlias = BinaryIO | io.RawIOBase


def text_size(file: LineFile) -> int:
    """How many bytes an open file of lines has for its readers."""
    return file.seek(0, os.SEEK_END)


def text_bytes(path: Path) -> int:
    """The same for a file that is not open."""
    with open_raw_lines(path) as file:
        return text_size(file)


def read_span(file: LineFile, length: int, start: int) -> bytes:
    """Bytes of an open file of lines; fewer if it ends before."""
    file.seek(start)
    parts = []
    while length > 0 and (part := file.read(length)):  # without a buffer, at most a frame is read at once
        parts.append(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
