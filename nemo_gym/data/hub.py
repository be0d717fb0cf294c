"""Downloads files of Hugging Face datasets once, resumes broken downloads, and verifies checksums.

The hub gives the SHA-256 of large files and the Git hash of small ones. A download must match that, and also the
caller's SHA-256 if there is one. The cache holds only complete files. Machines without a network set
``ROLLOUT_GYM_HUB_FOLDER`` to a folder that holds repositories as ``owner/name/path``. The token comes from ``HF_TOKEN``
and is sent only to the hub, never to the storage that the hub redirects to.
"""

import csv
import hashlib
import http.client
import importlib
import io
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import replacing, user_cache

Row = dict[str, Any]

HUB: Final = "https://huggingface.co"
ATTEMPTS: Final = 5
REDIRECTS: Final = 5  # the hub needs one or two, to its storage
TIMEOUT_S: Final = 60.0
MAX_PAUSE_S: Final = 30.0
CHUNK: Final = 1 << 16
# The hub's own conversion of any dataset; file names follow from configuration and split.
AS_PARQUET: Final = "refs/convert/parquet"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a dataset repository; ``rows`` is the number of rows in the published file."""

    repo_id: str
    path: str
    rows: int
    revision: str = "main"
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.repo_id}/{self.path}"


class TransferError(Exception):
    """A transfer failed and may succeed if it is tried again, at once or after a pause."""

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Redirects are followed by hand: the first answer holds the checksum, and the token must not be passed on."""


def fetch(
    file: HubFile, environment: Mapping[str, str] = os.environ, *, sleep: Callable[[float], None] = time.sleep
) -> Path:
    """The file on disk: from the local folder, the cache, or the hub."""
    if folder := environment.get("ROLLOUT_GYM_HUB_FOLDER"):
        local = Path(folder) / file.repo_id / file.path
        if not local.is_file():
            raise ConfigError(f"{local}: no such file", hint="copy it there, or unset ROLLOUT_GYM_HUB_FOLDER")
        _verify(local, file)
        return local
    target = user_cache(environment) / "hub" / file.repo_id / file.revision.replace("/", "_") / file.path
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        _download(file, target, environment, sleep)
    _verify(target, file)
    return target


def list_files(repo_id: str, revision: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The names of the files that a dataset has."""
    if folder := environment.get("ROLLOUT_GYM_HUB_FOLDER"):
        root = Path(folder) / repo_id
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    url = f"{_endpoint(environment)}/api/datasets/{repo_id}/revision/{urllib.parse.quote(revision, safe='')}"
    request = urllib.request.Request(url)  # noqa: S310 - the hub's address, or the user's
    if token := _token(environment):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
            found = json.loads(reply.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ConfigError(
            f"could not list the files of {repo_id}: {error}",
            hint="check the name and the network; private datasets need HF_TOKEN",
        ) from error
    return sorted(str(entry["rfilename"]) for entry in found.get("siblings", ()))


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSONL, CSV or Parquet file."""
    if path.suffix == ".parquet":
        try:
            parquet = importlib.import_module("pyarrow.parquet")
        except ModuleNotFoundError:
            raise ConfigError(
                "reading this dataset needs the library 'pyarrow'", hint="pip install 'rollout-gym[data]'"
            ) from None
        rows: list[Row] = parquet.read_table(path).to_pylist()
        return rows
    text = path.read_text("utf-8")
    if path.suffix == ".csv":
        return [dict(row) for row in csv.DictReader(io.StringIO(text))]
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def fetch_rows(file: HubFile, environment: Mapping[str, str] = os.environ) -> list[Row]:
    """The rows of a file. It is an error if their number differs from that of the published file."""
    rows = read_rows(fetch(file, environment))
    if len(rows) != file.rows:
        raise ConfigError(
            f"{file} has {len(rows)} rows, not {file.rows}",
            hint="the dataset has changed: compare results only with others of the same data",
        )
    return rows


def write_rows(rows: Iterable[Row], path: Path) -> Path:
    """Write a benchmark's task file, whole or not at all, and return its path."""
    with replacing(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return path


def _download(file: HubFile, target: Path, environment: Mapping[str, str], sleep: Callable[[float], None]) -> None:
    part = target.with_name(f"{target.name}.part")
    reason = ""
    for attempt in range(ATTEMPTS):
        try:
            _transfer(file, part, environment)
        except TransferError as error:
            reason = str(error)
            if attempt + 1 < ATTEMPTS:
                sleep(min(MAX_PAUSE_S, 2.0**attempt if error.pause_s is None else error.pause_s))
        else:
            part.replace(target)
            return
    raise ConfigError(
        f"could not download {file}: {reason} ({ATTEMPTS} attempts)",
        hint="try again later; what has arrived is kept. Without a network set ROLLOUT_GYM_HUB_FOLDER",
    )


def _transfer(file: HubFile, part: Path, environment: Mapping[str, str]) -> None:
    """Download the missing part of the file, then compare all of it with the hub's checksum."""
    have = part.stat().st_size if part.is_file() else 0
    try:
        first, reply = _open(file, environment, have)
        # A server that ignores the range sends the whole file, which then replaces the part.
        with reply, part.open("ab" if reply.status == http.HTTPStatus.PARTIAL_CONTENT else "wb") as output:
            while chunk := reply.read(CHUNK):
                output.write(chunk)
    except (OSError, http.client.HTTPException) as error:
        raise TransferError(f"{type(error).__name__}: {error}") from error
    # Large files are stored elsewhere. Only the hub's own answer, the redirect, describes them.
    size = first.get("X-Linked-Size") or (reply.headers.get("Content-Range") or "").rpartition("/")[2]
    arrived = part.stat().st_size
    if size.isdigit() and arrived < int(size):
        raise TransferError(f"only {arrived} of {size} bytes arrived")
    wanted = (first.get("X-Linked-Etag") or first.get("ETag") or "").removeprefix("W/").strip('"')
    if not _has_hash(part, wanted):
        part.unlink()  # resuming would only complete the same wrong file
        raise TransferError("the download does not match the hub's checksum")


def _endpoint(environment: Mapping[str, str]) -> str:
    return (environment.get("HF_ENDPOINT") or HUB).rstrip("/")


def _token(environment: Mapping[str, str]) -> str | None:
    return environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN")


def _open(file: HubFile, environment: Mapping[str, str], have: int) -> tuple[Message, http.client.HTTPResponse]:
    revision = urllib.parse.quote(file.revision, safe="")
    url = f"{_endpoint(environment)}/datasets/{file.repo_id}/resolve/{revision}/{urllib.parse.quote(file.path)}"
    token = _token(environment)
    opener = urllib.request.build_opener(_NoRedirect)
    hub, first = urllib.parse.urlsplit(url).netloc, None
    for _ in range(REDIRECTS):
        request = urllib.request.Request(url)  # noqa: S310 - the hub's address, or the user's
        if have:
            request.add_header("Range", f"bytes={have}-")
        if token and urllib.parse.urlsplit(url).netloc == hub:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            reply = opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                first = first or error.headers
                url = urllib.parse.urljoin(url, _redirect_target(error, file, token))
            continue
        return first or reply.headers, reply
    raise TransferError("too many redirects")


def _redirect_target(error: urllib.error.HTTPError, file: HubFile, token: str | None) -> str:
    """Where a redirect leads; raises an error if the answer is not a redirect."""
    if error.code in {301, 302, 303, 307, 308} and (location := error.headers.get("Location")):
        return location
    if error.code in {401, 403}:
        raise ConfigError(
            f"the hub refuses to send {file} {'with this token' if token else 'without a token'}",
            hint=f"accept the terms at {HUB}/datasets/{file.repo_id} and set HF_TOKEN",
        )
    if error.code == http.HTTPStatus.NOT_FOUND:
        raise ConfigError(f"the hub has no {file} (revision {file.revision})", hint="the dataset may have moved")
    pause = error.headers.get("Retry-After", "")
    raise TransferError(f"the hub answered {error.code}", float(pause) if pause.isdigit() else None)


def _has_hash(path: Path, wanted: str) -> bool:
    content = path.read_bytes()
    if len(wanted) == 64:
        return hashlib.sha256(content).hexdigest() == wanted
    if len(wanted) == 40:
        # Git's hash of a file's content.
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == wanted
    return True  # not a hash; the size was right


def _verify(path: Path, file: HubFile) -> None:
    if file.sha256 and (found := hashlib.sha256(path.read_bytes()).hexdigest()) != file.sha256:
        raise ConfigError(
            f"{path} is not the published file: its SHA-256 is {found}, not {file.sha256}", hint="remove it"
        )
