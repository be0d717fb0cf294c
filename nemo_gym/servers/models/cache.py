"""Answers of models, kept in a folder: one file each, named after what was asked.

Any number of processes may share a folder. A file appears whole or not at all, and says what its content must be, so
that a damaged one is thrown away and asked for again. Once the folder exceeds its size, what was not used for longest
goes first. A folder that can't be written any more costs the cache, never a rollout.

A model server's answers from a cache: what makes two requests the same, and a handler that looks there first.

The same is what has the same model server (its class and those of its settings that say what is generated), the same
parameters and messages, and the same number among its kind: the index of the rollout and how often that rollout asked
this before. So a run that is repeated costs nothing, while the repeats of a task stay different. Only good answers are
kept.
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
from typing import Any, Final, NamedTuple, TypeVar

import orjson
from omegaconf import DictConfig
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from nemo_gym.config.interpolation import plain_or_error
from nemo_gym.config.paths import started_in
from nemo_gym.config.secrets import is_secret_key
from nemo_gym.errors import ConfigError
from nemo_gym.servers.rollout_scope import Occurrences, current_scope

logger = logging.getLogger(__name__)


MAGIC: Final = b"rollout-gym-answer-1 "
DEFAULT_MAX_GB: Final = 10.0
GIGABYTE: Final = 10**9
# How far the folder is cleared at a time, and how much may be added before it is looked at again.
KEPT: Final = 0.9
UNSEEN: Final = 1 / 32
STALE_S: Final = 3600.0


class _Entry(NamedTuple):
    used: float
    size: int
    path: str


class GenerationCache:
    """A folder of answers."""

    def __init__(self, folder: Path, *, max_bytes: int = int(DEFAULT_MAX_GB * GIGABYTE)) -> None:
        self.folder = folder
        self.hits = 0
        self.misses = 0
        self._max_bytes = max_bytes
        self._unseen: float = float("inf")  # bytes added since the folder was looked at
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
        """The answer to what has this key, if it is here and undamaged."""
        content = await asyncio.to_thread(self.read, key)
        self.hits += content is not None
        self.misses += content is None
        return content

    async def put(self, key: str, content: bytes) -> None:
        """Keep an answer."""
        await asyncio.to_thread(self.write, key, content)

    def read(self, key: str) -> bytes | None:
        """The same as ``get``, without giving way to others."""
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
                os.utime(path)
        return content

    def write(self, key: str, content: bytes) -> None:
        """The same as ``put``, without giving way to others."""
        path, text = self._path(key), _head(content) + content
        if len(text) > self._max_bytes:
            return
        try:
            draft = self._draft()
            draft.write_bytes(text)
            path.parent.mkdir(exist_ok=True)
            draft.replace(path)
            self._account(len(text))
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("%s can't be written, so answers are not kept: %s", self.folder, error.strerror or error)

    # ---- size -------------------------------------------------------------------------------------------------------
    def _account(self, size: int) -> None:
        with self._accounts:
            self._unseen += size
            if self._unseen <= self._max_bytes * UNSEEN:
                return
            self._unseen = 0.0
        self.trim()

    def trim(self) -> None:
        """Remove what was not used for longest until the folder is well below its size."""
        with _sole(self.folder / "lock") as is_sole:
            if not is_sole:
                return  # another process is at it
            entries = sorted(self._entries())
            size = sum(entry.size for entry in entries)
            if size <= self._max_bytes:
                return
            for entry in entries:
                with suppress(OSError):
                    os.unlink(entry.path)  # noqa: PTH108 - there may be a million, and a Path for each takes longer
                size -= entry.size
                if size <= self._max_bytes * KEPT:
                    return

    def _entries(self) -> Iterator[_Entry]:
        for drawer in os.scandir(self.folder):
            if not drawer.is_dir():
                continue
            for file in os.scandir(drawer.path):
                with suppress(OSError):
                    facts = file.stat()
                    if drawer.name != "drafts":
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


Model = TypeVar("Model", bound=BaseModel)

CACHE: Final = "cache"
CACHE_MAX_GB: Final = "cache_max_gb"
# Settings that say how a model is asked, and not what it generates.
OPERATIONAL: Final = frozenset(
    {
        *("name", "host", "port", "entrypoint", "domain", "num_workers", "isolation"),
        *("max_concurrent_requests", "num_concurrent_requests", "request_timeout_s", "connect_timeout_s"),
        *("endpoint_max_concurrent_requests", "max_queue_depth", "max_retries", "prices"),
        *("n_parallel", "engines", "threads"),
    }
)
CANONICAL: Final = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


class CacheSettings(BaseModel):
    """Where answers are kept, and how many."""

    cache: str
    cache_max_gb: float = Field(DEFAULT_MAX_GB, gt=0)


def open_cache(config: Any) -> GenerationCache | None:
    """The cache that a configuration asks for, if it does. Call it where relative paths mean what the user means."""
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
    """What of a model server decides what it generates."""
    said = settings.model_dump(mode="json", exclude=set(OPERATIONAL))
    name = f"{server.__module__.rpartition('.')[0]}.{server.__qualname__}"
    return orjson.dumps([name, _without_secrets(said)], option=CANONICAL)


def _without_secrets(value: Any) -> Any:
    """The value without credentials: another key is the same model."""
    if isinstance(value, dict):
        return {
            name: _without_secrets(inner)
            for name, inner in value.items()
            if not (isinstance(inner, str) and is_secret_key(name))
        }
    return list(map(_without_secrets, value)) if isinstance(value, list) else value


class CachedCalls:
    """Gives handlers of one model server a cache."""

    def __init__(self, cache: GenerationCache, identity: bytes) -> None:
        self.cache = cache
        self._identity = identity
        self._asked = Occurrences()

    def wrap(self, handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The same handler, which answers from the cache what it has answered before."""
        route = getattr(handler, "__name__", "").removeprefix("relay_")

        @wraps(handler)
        async def answer(**values: Any) -> Any:
            body = next((value for value in values.values() if isinstance(value, BaseModel)), None)
            if body is None:
                return await handler(**values)
            key = self.key(route, body.model_dump(mode="json", exclude_unset=True))
            content = await self.cache.get(key)
            if content is None:
                result = await handler(**values)
                content = _reusable_content(result)
                if content is None:
                    return result
                await self.cache.put(key, content)
            return Response(content, media_type="application/json")

        return answer

    def wrap_typed(
        self, handler: Callable[..., Awaitable[Model]], model: type[Model]
    ) -> Callable[..., Awaitable[Model]]:
        """The same for callers that want an object and not an answer."""
        cached = self.wrap(handler)

        @wraps(handler)
        async def answer(**values: Any) -> Model:
            result = await cached(**values)
            return model.model_validate_json(bytes(result.body)) if isinstance(result, Response) else result

        return answer

    def key(self, route: str, body: Mapping[str, Any]) -> str:
        """The name of the answer to a request; asking again in the same attempt asks for another answer."""
        said = {name: value for name, value in body.items() if value is not None}
        asked = orjson.dumps([route, said], option=CANONICAL)
        request = blake2b(asked, key=blake2b(self._identity).digest(), digest_size=20).hexdigest()
        scope = current_scope()
        number = self._asked.next(scope, request)
        repeat = f"{scope.rollout if scope is not None else 'any'}.{number}"
        return blake2b(f"{request}.{repeat}".encode(), digest_size=20).hexdigest()


def _reusable_content(result: Any) -> bytes | None:
    """The JSON of a good answer; None for anything else."""
    if isinstance(result, BaseModel):
        return result.__pydantic_serializer__.to_json(result, by_alias=True)
    if isinstance(result, Response) and result.status_code == 200:
        body = getattr(result, "body", None)
        return bytes(body) if body else None
    return None
