"""Tells which rollout a call belongs to, however many servers lie between the rollout and the call.

The code that runs an attempt marks the current task. Calls inside the process inherit the mark; calls to other
processes carry it in a header or as a path prefix (``/ng-rollout/<id>/…``, for programs that are only given a base
URL). Agents and environments need not know about it. A call from elsewhere has no mark.
"""

import contextlib
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Self

from omegaconf import DictConfig, OmegaConf
from starlette.types import Scope

from nemo_gym.schemas.rows import ROLLOUT_ID_PATTERN

HEADER: Final = "X-NG-Rollout"
PATH_PREFIX: Final = "/ng-rollout/"
TOKEN_SEGMENT: Final = "training-token-capture/"  # noqa: S105 - after the id: the call is to be trained on
REPLAY: Final = "replay_model"
_HEADER: Final = HEADER.lower().encode()
_FORM: Final = re.compile(r"(-?\d{1,18})\.(\d{1,18})\.(\d{1,9})\.([0-9a-f]{1,40})(?:\.c)?")
_CAPTURED: Final = ".c"  # ends the mark of an attempt whose model calls are kept until its collector takes them
_REMEMBERED: Final = 65_536  # attempts, and requests outside any attempt, for which counts are stored

_mark: ContextVar[str] = ContextVar("rollout_mark", default="")
_rollout_id: ContextVar[str | None] = ContextVar("rollout_id", default=None)


class RolloutScope(NamedTuple):
    """One attempt of a rollout."""

    task: int
    rollout: int
    attempt: int
    run: str  # distinguishes this attempt from the same one in another run

    @classmethod
    def parse(cls, mark: str) -> Self | None:
        """Read a mark; None if the text is not a mark."""
        found = _FORM.fullmatch(mark)
        return cls(int(found[1]), int(found[2]), int(found[3]), found[4]) if found else None

    @property
    def rollout_id(self) -> str:
        """The name of this attempt for people and programs: ``task-rollout``, with a suffix for retries."""
        return rollout_id_of(self.task, self.rollout, self.attempt - 1)


def rollout_id_of(task: int, rollout: int, attempt_index: int = 0) -> str:
    """The id of an attempt; the first attempt has index 0."""
    return f"{task}-{rollout}" + (f"-a{attempt_index}" if attempt_index > 0 else "")


def current_rollout_id() -> str | None:
    """The id of the rollout that the current call belongs to, if known."""
    given = _rollout_id.get()
    if given is not None:
        return given
    scope = current_scope()
    return scope.rollout_id if scope is not None else None


@contextlib.contextmanager
def rollout_context(rollout_id: str | None) -> Iterator[None]:
    """Make all calls inside belong to this rollout."""
    token = _rollout_id.set(rollout_id)
    try:
        yield
    finally:
        _rollout_id.reset(token)


def split_path_prefix(path: str) -> tuple[str | None, str]:
    """The rollout id at the start of a path, and the path without it."""
    if not path.startswith(PATH_PREFIX):
        return None, path
    rollout_id, slash, rest = path.removeprefix(PATH_PREFIX).partition("/")
    rest = rest.removeprefix(TOKEN_SEGMENT)
    return (rollout_id, slash + rest) if ROLLOUT_ID_PATTERN.match(rollout_id) else (None, path)


def adopt_path_prefix(scope: Scope) -> Scope:
    """Take the rollout id from the path of a request, and return the scope without the prefix."""
    rollout_id, path = split_path_prefix(scope.get("path", ""))
    if rollout_id is None:
        return scope
    _rollout_id.set(rollout_id)
    return {**scope, "path": path or "/", "raw_path": (path or "/").encode()}


def wants_marks(config: Any) -> bool:
    """Whether a Gym of this configuration has a server that needs to know which rollout is calling."""
    if not isinstance(config, DictConfig):
        return False
    if config.get("cache"):
        return True
    blocks = OmegaConf.to_container(config, resolve=False)
    assert isinstance(blocks, dict)
    models = (block.get("responses_api_models") for block in blocks.values() if isinstance(block, dict))
    return any(
        REPLAY in model or any(map(_has_replicas, model.values())) for model in models if isinstance(model, dict)
    )


def _has_replicas(settings: Any) -> bool:
    """Whether a model server has several endpoints, of which each rollout is to stay with one."""
    urls = settings.get("base_url") if isinstance(settings, dict) else None
    return isinstance(urls, list) and len(urls) > 1


def mark_rollout(task: int, rollout: int, attempt: int, *, captured: bool = False) -> str:
    """Make all further calls of the current task belong to this attempt, and return its mark.

    ``captured``: whoever runs the attempt takes its model calls in the end.
    """
    mark = f"{task}.{rollout}.{attempt}.{secrets.token_hex(6)}{_CAPTURED if captured else ''}"
    _mark.set(mark)
    return mark


def captured_mark() -> str | None:
    """The mark of the current attempt, if its model calls are to be kept."""
    mark = _mark.get()
    return mark if mark.endswith(_CAPTURED) else None


def mark_of_program() -> str:
    """The mark under which the calls of the current attempt's program are kept, whether or not its others are."""
    mark = _mark.get() or f"0.0.1.{secrets.token_hex(6)}"
    return mark if mark.endswith(_CAPTURED) else mark + _CAPTURED


def mark_program() -> str:
    """Make the further calls of the current task those of a program, and return the mark."""
    mark = mark_of_program()
    _mark.set(mark)
    return mark


@contextlib.contextmanager
def uncaptured() -> Iterator[None]:
    """Keep none of the model calls inside: they are not the agent's."""
    token = _mark.set(_mark.get().removesuffix(_CAPTURED))
    try:
        yield
    finally:
        _mark.reset(token)


def current_mark() -> str:
    """The mark to send with a call to another process; empty if there is none."""
    return _mark.get()


def current_scope() -> RolloutScope | None:
    """The attempt that the current call belongs to, if known."""
    mark = _mark.get()
    return RolloutScope.parse(mark) if mark else None


def adopt_mark(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Use the mark of a request from another process for the current task."""
    for name, value in headers:
        if name == _HEADER:
            _mark.set(value.decode("latin-1"))


class Occurrences:
    """Counts how often something was requested in the same attempt. Forgets the oldest attempts."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._runs: OrderedDict[Hashable, Counter[Hashable]] = OrderedDict()

    def next(self, scope: RolloutScope | None, key: Hashable) -> int:
        """How often this was requested before in the attempt; without an attempt, by all such callers together."""
        run: Hashable = scope.run if scope is not None else key
        counts = self._runs.setdefault(run, Counter())
        self._runs.move_to_end(run)
        if len(self._runs) > self._remembered:
            self._runs.popitem(last=False)
        counts[key] += 1
        return counts[key] - 1
