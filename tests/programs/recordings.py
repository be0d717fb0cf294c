"""The requests of real programs, as they were recorded: one compressed file for each program and version."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

FOLDER = Path(__file__).parent / "recordings"
SECRET = re.compile(r"ng-[A-Za-z0-9_-]{20,}")
UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


class Recorded(NamedTuple):
    """One request, and the status of its answer when it was recorded."""

    path: str
    headers: dict[str, str]
    body: Any
    status: int


class Recording(NamedTuple):
    """What a version of a program sent in one run."""

    program: str
    version: str
    requests: list[Recorded]


def without_machine(request: Recorded, place: str, programs: str, root: str) -> Recorded:
    """A request without what tells about the machine that it was recorded on."""
    text = json.dumps(request)
    for found, other in ((place, "/tmp/attempt"), (programs, "/opt/programs"), (root, "http://127.0.0.1:8000")):
        text = text.replace(found, other).replace(found.replace("/", "-"), other.replace("/", "-"))
    text = SECRET.sub("ng-secret", text)
    names: dict[str, str] = {}
    text = UUID.sub(lambda found: names.setdefault(found[0], _plain_uuid(found[0])), text)
    return Recorded(*json.loads(text))


def _plain_uuid(name: str) -> str:
    """Another id for each id, the same every time, so that equal ones stay equal."""
    import hashlib

    digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:]}"


def write_recording(program: str, version: str, requests: list[Recorded]) -> None:
    """Write a recording. Each request repeats the one before, which compression over a long window removes."""
    FOLDER.mkdir(exist_ok=True)
    lines = "".join(json.dumps(request._asdict(), ensure_ascii=False) + "\n" for request in requests)
    options = zstandard.ZstdCompressionParameters.from_level(19, window_log=24, enable_ldm=True)
    content = zstandard.ZstdCompressor(compression_params=options).compress(lines.encode())
    (FOLDER / f"{program}-{version}.jsonl.zst").write_bytes(content)


def read_recordings() -> Iterator[Recording]:
    """All recordings."""
    for path in sorted(FOLDER.glob("*.jsonl.zst")):
        program, _, version = path.name.removesuffix(".jsonl.zst").rpartition("-")
        text = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()).decode()
        yield Recording(program, version, [Recorded(**json.loads(line)) for line in text.splitlines()])
