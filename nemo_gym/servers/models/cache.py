"""A cache of completions in a folder: one file for each completion, named after the request.

Any number of processes may share a folder. A file appears whole or not at all and contains a checksum, so a damaged
file is removed and the model is called again. Once the folder exceeds its size, the least recently used completions
are removed first. If the folder can no longer be written, completions are not cached, but no rollout fails.

Two requests are the same if they have the same model server (its class and the settings that affect what is
generated), the same parameters and messages, and the same number: the index of the rollout and how often that rollout
has made this request before. So repeating a run costs nothing, while the repeats of a task stay different. Only
successful completions are cached.
"""

import asyncio
import fcntl
import itertools
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from omegaconf import DictConfig
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from nemo_gym.config.interpolation import plain_or_error
from nemo_gym.config.locate import started_in
from nemo_gym.config.secrets import is_secret_key
from nemo_gym.errors import ConfigError
from nemo_gym.schemas.rows import SPENT
from nemo_gym.servers.direct.routes import UnreadBody
from nemo_gym.servers.middleware.rollout_scope import Occurrences, current_scope

logger = logging.getLogger(__name__)


MAGIC: Final = b"rollout-gym-answer-1 "
DEFAULT_MAX_GB: Final = 10.0
GIGABYTE: Final = 10**9
# To which part of its size a full folder is reduced, and how much may be added before its size is measured again.
TRIMMED_SHARE: Final = 0.9
UNMEASURED_SHARE: Final = 1 / 32
STALE_S: Final = 3600.0


class _Entry(NamedTuple):
    used: float
    size: int
    path: str


class GenerationCache:
    """A folder of completions."""

    def __init__(self, folder: Path, *, max_bytes: int = int(DEFAULT_MAX_GB * GIGABYTE)) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._unmeasured: float = float("inf")  # bytes added since the size of the folder was measured
        self._drafts = itertools.count()
        self._accounts = threading.Lock()
        self._has_warned = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            draft = self._draft()
            draft.touch()
            draft.unlink()
        except OSError as error:
            raise ConfigError(
                f"cache: {folder} can't be written: {error.strerror}", hint="choose another folder with +cache=…"
            ) from error

    async def get(self, key: str) -> bytes | None:
        """The completion under this key, if there is one and it is undamaged."""
        return await asyncio.to_thread(self.read, key)

    async def put(self, key: str, content: bytes) -> None:
        """Store a completion."""
        await asyncio.to_thread(self.write, key, content)

    def read(self, key: str) -> bytes | None:
        """The same as ``get``, but blocking."""
        path = self._path(key)
        try:
            text = path.read_bytes()
        except OSError:
            return None
        content = _stored_content(text)
        with suppress(OSError):
            if content is None:
                logger.warning("%s is damaged and was removed", path)
                path.unlink()
            else:
                os.utime(path)  # the modification time is when a completion was last used
        return content

    def write(self, key: str, content: bytes) -> None:
        """The same as ``put``, but blocking."""
        path, text = self._path(key), _head(content) + content
        if len(text) > self._max_bytes:
            return
        try:
            # Written under another name and renamed, so that no reader sees half a file.
            draft = self._draft()
            draft.write_bytes(text)
            path.parent.mkdir(exist_ok=True)
            draft.replace(path)
            self._account(len(text))
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s can't be written, so completions are not cached: %s", self.folder, error.strerror or error
                )

    # ---- size -------------------------------------------------------------------------------------------------------
    def _account(self, size: int) -> None:
        with self._accounts:
            self._unmeasured += size
            if self._unmeasured <= self._max_bytes * UNMEASURED_SHARE:
                return
            self._unmeasured = 0.0
        self.trim()

    def trim(self) -> None:
        """Remove the least recently used completions until the folder is well below its maximum size."""
        with _sole(self.folder / "lock") as is_sole:
            if not is_sole:
                return  # another process is already trimming
            entries = sorted(self._entries())
            size = sum(entry.size for entry in entries)
            if size <= self._max_bytes:
                return
            for entry in entries:
                with suppress(OSError):
                    os.unlink(entry.path)  # noqa: PTH108 - there may be a million files, and Path objects are slower
                size -= entry.size
                if size <= self._max_bytes * TRIMMED_SHARE:
                    return

    def _entries(self) -> Iterator[_Entry]:
        for subfolder in os.scandir(self.folder):
            if not subfolder.is_dir():
                continue
            for file in os.scandir(subfolder.path):
                with suppress(OSError):
                    facts = file.stat()
                    if subfolder.name != "drafts":
                        yield _Entry(facts.st_mtime, facts.st_size, file.path)
                    elif facts.st_mtime < time.time() - STALE_S:
                        os.unlink(file.path)  # noqa: PTH108 - as above

    # ---- names ------------------------------------------------------------------------------------------------------
    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key[2:]

    def _draft(self) -> Path:
        drafts = self.folder / "drafts"
        drafts.mkdir(exist_ok=True)
        return drafts / f"{os.getpid()}-{next(self._drafts)}"


def _head(content: bytes) -> bytes:
    return MAGIC + blake2b(content, digest_size=16).hexdigest().encode() + b"\n"


def _stored_content(text: bytes) -> bytes | None:
    head, _, content = text.partition(b"\n")
    return content if head + b"\n" == _head(content) else None


@contextmanager
def _sole(path: Path) -> Iterator[bool]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


CACHE: Final = "cache"
CACHE_MAX_GB: Final = "cache_max_gb"
# Settings that affect how a model is called but not what it generates.
OPERATIONAL: Final = frozenset(
    {
        *("name", "host", "port", "entrypoint", "domain", "num_workers", "isolation"),
        *("max_concurrent_requests", "num_concurrent_requests", "request_timeout_s", "connect_timeout_s"),
        *("endpoint_max_concurrent_requests", "max_queue_depth", "max_retries", "prices", "on_loss"),
        *("n_parallel", "engines", "threads"),
    }
)
CANONICAL: Final = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


class CacheSettings(BaseModel):
    """The folder of the cache and its maximum size."""

    cache: str
    cache_max_gb: float = Field(DEFAULT_MAX_GB, gt=0)


def open_cache(config: Any) -> GenerationCache | None:
    """The cache that a configuration sets, if any. Relative paths start where the command was started."""
    if not isinstance(config, DictConfig) or not config.get(CACHE):
        return None
    given = {name: plain_or_error(config, name) for name in (CACHE, CACHE_MAX_GB) if config.get(name) is not None}
    try:
        settings = CacheSettings.model_validate(given)
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(reasons, hint="for example +cache=results/cache +cache_max_gb=10") from None
    return GenerationCache(started_in() / settings.cache, max_bytes=int(settings.cache_max_gb * GIGABYTE))


def identity(server: type, settings: BaseModel) -> bytes:
    """The class and those settings of a model server that affect what it generates."""
    chosen = settings.model_dump(mode="json", exclude=set(OPERATIONAL))
    name = f"{server.__module__.rpartition('.')[0]}.{server.__qualname__}"
    return orjson.dumps([name, _without_secrets(chosen)], option=CANONICAL)


def _without_secrets(value: Any) -> Any:
    """The value without credentials: the model stays the same with another key."""
    if isinstance(value, dict):
        return {
            name: _without_secrets(inner)
            for name, inner in value.items()
            if not (isinstance(inner, str) and is_secret_key(name))
        }
    return list(map(_without_secrets, value)) if isinstance(value, list) else value


class CachedCalls:
    """Adds a cache to the handlers of one model server."""

    def __init__(self, cache: GenerationCache, identity: bytes) -> None:
        self.cache = cache
        self._identity = identity
        self._requests = Occurrences()

    def wrap(self, handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The same handler, except that repeated requests are served from the cache."""
        route = getattr(handler, "__name__", "").removeprefix("relay_")

        @wraps(handler)
        async def reply(**values: Any) -> Any:
            body = next(filter(None, map(_content_of, values.values())), None)
            if body is None:
                return await handler(**values)
            key = self.key(route, body)
            content = await self.cache.get(key)
            if content is not None:
                return Response(_unpaid(content), media_type="application/json")
            result = await handler(**values)
            content = _reusable_content(result)
            if content is None:
                return result
            await self.cache.put(key, content)
            return Response(content, media_type="application/json")

        return reply

    def key(self, route: str, body: Mapping[str, Any]) -> str:
        """The key of the completion for a request. Repeating a request in the same attempt gives another key."""
        given = {name: value for name, value in body.items() if value is not None}
        text = orjson.dumps([route, given], option=CANONICAL)
        request = blake2b(text, key=blake2b(self._identity).digest(), digest_size=20).hexdigest()
        scope = current_scope()
        number = self._requests.next(scope, request)
        repeat = f"{scope.rollout if scope is not None else 'any'}.{number}"
        return blake2b(f"{request}.{repeat}".encode(), digest_size=20).hexdigest()


def _unpaid(content: bytes) -> bytes:
    """The completion with a usage that marks it as free of charge, so that budgets do not count it."""
    completion = orjson.loads(content)
    if not isinstance(completion, dict) or not isinstance(completion.get("usage"), dict):
        return content
    completion["usage"][SPENT] = {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0}
    return orjson.dumps(completion)


def _content_of(value: Any) -> dict[str, Any] | None:
    """The content of a request, if the value is one."""
    if isinstance(value, UnreadBody):
        return value.fields
    return value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else None


def _reusable_content(result: Any) -> bytes | None:
    """The JSON of a successful completion; None for anything else."""
    if isinstance(result, BaseModel):
        return result.__pydantic_serializer__.to_json(result, by_alias=True)
    if isinstance(result, Response) and result.status_code == 200:
        body = getattr(result, "body", None)
        return bytes(body) if body else None
    return None
