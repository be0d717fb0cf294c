"""Zstandard frames: lines written as frames that can be read one by one, and the text of a file of frames.

A file that is being written to, or that a crash left, may have bytes that are not a whole frame. In the text they
appear as zero bytes, which is what a hole in a plain file looks like. The format is that of RFC 8878, section 3.1.
"""

import io
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from nemo_gym.errors import ConfigError

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_FRAME: Final = 256 << 10  # bytes of text after which a frame ends: larger ones hardly get any denser
_HELD: Final = 4 << 20  # bytes of text that a reader keeps, because lines are nearly read in their order
_SEARCHED: Final = 1 << 20
_RESERVED: Final = 3
_REPEATED_BYTE: Final = 1
_LARGEST_BLOCK: Final = 128 << 10  # of text
_LONGEST_HEADER: Final = 18


def framed(path: Path, lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines, with their line feeds, as frames that are small enough to be read for the sake of one line."""
    zstd = zstandard_for(path)
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _FRAME:
            yield _frame(zstd, b"".join(held))
            held, size = [], 0
    if held:
        yield _frame(zstd, b"".join(held))


def _frame(zstd: Any, text: bytes) -> bytes:
    """The text as a frame of its own, with its size and a checksum."""
    if hasattr(zstd, "CompressionParameter"):
        return cast("bytes", zstd.compress(text, options={zstd.CompressionParameter.checksum_flag: 1}))
    return cast("bytes", zstd.ZstdCompressor(write_checksum=True).compress(text))


def zstandard_for(path: Path) -> Any:
    """The library for Zstandard, or an error that names the file which needs it."""
    for name in ("compression.zstd", "zstandard"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ConfigError(
        f"{path} is compressed with Zstandard, which this Python lacks",
        hint="pip install 'rollout-gym[zstd]'; or use a file that is not compressed",
    )


class _Frame(NamedTuple):
    """A frame, or bytes between frames that are none."""

    start: int
    end: int
    text: int  # where its text begins
    size: int  # of its text
    is_whole: bool


class FrameReader(io.RawIOBase):
    """The text of a file of frames. What is appended after opening is not seen."""

    def __init__(self, path: Path) -> None:
        self._zstd = zstandard_for(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._frames = list(self._found(os.fstat(self._descriptor).st_size))
        self._texts = [frame.text for frame in self._frames]
        self._size = self._frames[-1].text + self._frames[-1].size if self._frames else 0
        self._position = 0
        self._held: dict[int, bytes] = {}  # the text of frames that were read last
        self._damaged: set[int] = set()  # frames that turned out not to hold what they held when they were written

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        if self._position >= self._size:
            return 0
        number = self._number(self._position)
        begin = self._position - self._texts[number]
        part = memoryview(self._text(number))[begin : begin + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def original(self, start: int, length: int) -> bytes:
        """What a person should see of a span of the text: the bytes in the file, where these are not a whole frame."""
        number = self._number(start)
        self._text(number)  # which finds out whether a frame is damaged
        frame = self._frames[number]
        if number in self._damaged or not frame.is_whole:
            return os.pread(self._descriptor, frame.end - frame.start, frame.start)
        self.seek(start)
        parts = []
        while length > 0 and (part := self.read(length)):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def cut_at(self, position: int) -> int | None:
        """Where to cut the file so that its text ends at a position; None if that is inside a frame."""
        frame = self._frames[self._number(position)]
        return frame.start if frame.text == position else None

    def _number(self, position: int) -> int:
        return bisect_right(self._texts, position) - 1

    def _text(self, number: int) -> bytes:
        if number not in self._held:
            frame = self._frames[number]
            found = self._content(frame.start, frame.end, frame.size) if frame.is_whole else None
            if found is None and frame.is_whole:
                self._damaged.add(number)
            self._held[number] = self._hole(number) if found is None else found
            while len(self._held) > 1 and sum(map(len, self._held.values())) > _HELD:
                del self._held[next(iter(self._held))]
        return self._held[number]

    def _hole(self, number: int) -> bytes:
        """What stands for bytes that are not a whole frame: a line, or the start of one if more may follow."""
        frame = self._frames[number]
        is_torn = not frame.is_whole and number == len(self._frames) - 1  # or it is just being written
        return bytes(frame.size) if is_torn else bytes(frame.size - 1) + b"\n"

    def _content(self, start: int, end: int, size: int | None) -> bytes | None:
        """The text of a frame; None if it is damaged."""
        reader = self._zstd.ZstdDecompressor()
        reader = reader.decompressobj() if hasattr(reader, "decompressobj") else reader
        try:
            text = cast("bytes", reader.decompress(os.pread(self._descriptor, end - start, start)))
        except self._zstd.ZstdError:
            return None
        return text if reader.eof and size in (None, len(text)) else None

    # ---- where the frames are ---------------------------------------------------------------------------------------
    def _found(self, size: int) -> Iterator[_Frame]:
        start = text = 0
        while start < size:
            extent = self._extent(start, size)
            length = self._text_size(start, extent) if extent is not None else None
            if extent is None or length is None:
                end = self._next(start + 1, size)
                yield _Frame(start, end, text, end - start, is_whole=False)
                text += end - start
            else:
                end = extent.end
                if length:
                    yield _Frame(start, end, text, length, is_whole=True)
                text += length
            start = end

    def _next(self, start: int, size: int) -> int:
        """Where the next whole frame begins, or the end of the file."""
        while start < size:
            block = os.pread(self._descriptor, _SEARCHED, start)
            place = block.find(ZSTD_MAGIC)
            if place < 0:
                start += max(1, len(block) - len(ZSTD_MAGIC) + 1)
            elif self._extent(start + place, size) is not None:
                return start + place
            else:
                start += place + 1
        return size

    def _extent(self, start: int, size: int) -> "_Extent | None":
        """Where a frame ends, which the sizes of its blocks say; None if it is not whole."""
        head = os.pread(self._descriptor, 8, start)
        if _is_skipped(head):
            end = start + 8 + int.from_bytes(head[4:8], "little")
            return _Extent(end, 0) if end <= size else None
        if len(head) < 8 or not head.startswith(ZSTD_MAGIC):
            return None
        position, blocks, is_last = start + _Header.of(head[4]).size, 0, False
        while not is_last:
            block = os.pread(self._descriptor, 3, position)
            number = int.from_bytes(block, "little")
            is_last, kind = bool(number & 1), number >> 1 & 3
            if len(block) < 3 or kind == _RESERVED:
                return None
            position += 3 + (1 if kind == _REPEATED_BYTE else number >> 3)
            blocks += 1
        end = position + 4 * _Header.of(head[4]).has_checksum
        return _Extent(end, blocks) if end <= size else None

    def _text_size(self, start: int, extent: "_Extent") -> int | None:
        """The size of a frame's text: 0 if there is none, None if the frame is damaged."""
        if not extent.blocks:
            return 0
        head = os.pread(self._descriptor, _LONGEST_HEADER, start)
        header = _Header.of(head[4])
        if header.size_bytes == 0:  # another program wrote it, without knowing how long it would be
            text = self._content(start, extent.end, None)
            return None if text is None else len(text)
        field = head[header.size - header.size_bytes : header.size]
        size = int.from_bytes(field, "little") + (256 if header.size_bytes == 2 else 0)
        return size if size <= extent.blocks * _LARGEST_BLOCK else None


class _Extent(NamedTuple):
    """Where a frame ends, and of how many blocks it consists."""

    end: int
    blocks: int


class _Header(NamedTuple):
    """What the first byte after the magic number says about a frame."""

    size: int  # including the magic number
    size_bytes: int  # of the field that holds the size of the text
    has_checksum: bool

    @classmethod
    def of(cls, descriptor: int) -> "_Header":
        is_single = descriptor >> 5 & 1
        size_bytes = (is_single, 2, 4, 8)[descriptor >> 6]
        dictionary = (0, 1, 2, 4)[descriptor & 3]
        return cls(5 + (1 - is_single) + dictionary + size_bytes, size_bytes, bool(descriptor >> 2 & 1))


def _is_skipped(head: bytes) -> bool:
    """Whether a frame is one that readers skip, as some programs write between others."""
    return len(head) >= 8 and head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5
