"""Which rollout a call belongs to, however many servers lie between the rollout and the call.

Whoever runs an attempt marks the current task; calls inside the process inherit the mark by themselves, calls of other
processes carry it in a header. Agents and environments need not know. What comes from elsewhere bears no mark, and
whoever asks has to do without.
"""

import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Self

from omegaconf import DictConfig, OmegaConf

HEADER: Final = "X-NG-Rollout"
ASKING: Final = "replay_model"
_HEADER: Final = HEADER.lower().encode()
_FORM: Final = re.compile(r"(-?\d{1,18})\.(\d{1,18})\.(\d{1,9})\.([0-9a-f]{1,40})")
_REMEMBERED: Final = 65_536  # attempts that may be asking at the same time, and answers to nobody in particular

_mark: ContextVar[str] = ContextVar("rollout_mark", default="")


class RolloutScope(NamedTuple):
    """The attempt of a rollout."""

    task: int
    rollout: int
    attempt: int
    run: str  # tells this attempt from the same one of another run

    @classmethod
    def parse(cls, mark: str) -> Self | None:
        """Read a mark; None if it is none."""
        found = _FORM.fullmatch(mark)
        return cls(int(found[1]), int(found[2]), int(found[3]), found[4]) if found else None


def wants_marks(config: Any) -> bool:
    """Whether a Gym of this configuration has a server that asks which rollout is calling."""
    if not isinstance(config, DictConfig):
        return False
    if config.get("cache"):
        return True
    blocks = OmegaConf.to_container(config, resolve=False)
    assert isinstance(blocks, dict)
    servers = (block.get("responses_api_models") for block in blocks.values() if isinstance(block, dict))
    return any(ASKING in server for server in servers if isinstance(server, dict))


def mark_rollout(task: int, rollout: int, attempt: int) -> None:
    """All calls that the current task makes from now on belong to this attempt."""
    _mark.set(f"{task}.{rollout}.{attempt}.{secrets.token_hex(6)}")


def current_mark() -> str:
    """The mark to send along with a call to another process; empty if there is none."""
    return _mark.get()


def current_scope() -> RolloutScope | None:
    """The attempt that the current call belongs to, if that is known."""
    mark = _mark.get()
    return RolloutScope.parse(mark) if mark else None


def adopt_mark(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Take over the mark of a request from another process."""
    for name, value in headers:
        if name == _HEADER:
            _mark.set(value.decode("latin-1"))


class Occurrences:
    """Counts how often something was asked for in the same attempt. Forgets those that were asked long ago."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._runs: OrderedDict[Hashable, Counter[Hashable]] = OrderedDict()

    def next(self, scope: RolloutScope | None, key: Hashable) -> int:
        """How often this was asked for before. Without an attempt, by anybody without one."""
        run: Hashable = scope.run if scope is not None else key
        counts = self._runs.setdefault(run, Counter())
        self._runs.move_to_end(run)
        if len(self._runs) > self._remembered:
            self._runs.popitem(last=False)
        counts[key] += 1
        return counts[key] - 1
