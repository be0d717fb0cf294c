"""A model server's answers from a cache: what makes two requests the same, and a handler that looks there first.

The same is what has the same model server (its class and those of its settings that say what is generated), the same
parameters and messages, and the same number among its kind: the index of the rollout and how often that rollout asked
this before. So a run that is repeated costs nothing, while the repeats of a task stay different. Only good answers are
kept.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson
from omegaconf import DictConfig
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from nemo_gym.config.interpolation import plain_or_error
from nemo_gym.config.keys import CONFIG_PATH_ENV_VAR
from nemo_gym.config.secrets import is_secret_key
from nemo_gym.errors import ConfigError
from nemo_gym.servers.generation_cache import DEFAULT_MAX_GB, GIGABYTE, GenerationCache
from nemo_gym.servers.rollout_scope import Occurrences, current_scope

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
    return GenerationCache(launch_path(settings.cache, CACHE), max_bytes=int(settings.cache_max_gb * GIGABYTE))


def launch_path(path: str, setting: str) -> Path:
    """The absolute path that a setting means, relative to where the program was started."""
    if CONFIG_PATH_ENV_VAR in os.environ and not Path(path).is_absolute():
        raise ConfigError(
            f"{setting}: {path!r} is relative, and this server has a process and a working directory of its own",
            hint="give an absolute path, or remove isolation: process and num_workers",
        )
    return Path(path).absolute()


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
                content = _content(result)
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


def _content(result: Any) -> bytes | None:
    """The JSON of a good answer; None for anything else."""
    if isinstance(result, BaseModel):
        return result.__pydantic_serializer__.to_json(result, by_alias=True)
    if isinstance(result, Response) and result.status_code == 200:
        body = getattr(result, "body", None)
        return bytes(body) if body else None
    return None
