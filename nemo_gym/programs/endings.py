"""How an attempt of a program ended, judged by what was seen and not by its exit code alone. Pure.

In this order: the endpoint failed last; the program never asked the model; time or memory was over; we refused one of
its requests; it crashed. Otherwise its work is scored.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from nemo_gym.capture.gateway import AttemptReport
from nemo_gym.config.secrets import MASK, is_secret_key
from nemo_gym.io.child_process import exit_text
from nemo_gym.programs.keeper import Ended
from nemo_gym.schemas.rows import FailureClass

MESSAGE_LINES: Final = 8
TAIL_CHARS: Final = 4000
_SHORTEST_SECRET: Final = 8


class Unscored(NamedTuple):
    """Why an attempt is not scored."""

    kind: str
    message: str


def judge_calls(calls: AttemptReport) -> Unscored | None:
    """What the model calls alone say: the endpoint failed last."""
    if calls.last_failure is not None:
        return Unscored(calls.last_failure.kind, calls.last_failure.message)
    return None


def judge_refusals(calls: AttemptReport) -> Unscored | None:
    """Whether a request of the program was refused; one is enough, because an answer is missing then."""
    if not calls.refused:
        return None
    first, more = calls.refused[0], len(calls.refused) - 1
    others = f" (and {more} more)" if more else ""
    return Unscored(
        FailureClass.GATEWAY_REFUSED,
        f"{first.path} was refused with status {first.status}: {first.message}{others}",
    )


def judge(ended: Ended, calls: AttemptReport, *, timeout_s: float, memory_mb: int | None) -> Unscored | None:
    """Why an attempt is not scored; None if it is."""
    if (failed := judge_calls(calls)) is not None:
        return failed
    wrote = f"it wrote: {tail(ended.stderr) or tail(ended.stdout) or '(nothing)'}"
    if ended.limit == "stopped":
        return Unscored(FailureClass.WORKER_DIED, ended.error or "the program was stopped from outside")
    if not calls.calls:
        how = ended.error or f"{_how(ended)} without a call of the model"
        return Unscored(FailureClass.AGENT_START, f"{how}; {wrote}")
    return _over_limit(ended, timeout_s, memory_mb) or judge_refusals(calls) or _crash(ended, calls, wrote)


def _over_limit(ended: Ended, timeout_s: float, memory_mb: int | None) -> Unscored | None:
    if ended.limit == "time":
        return Unscored(FailureClass.AGENT_TIMEOUT, f"it was not ready after {timeout_s:g} s ({_how(ended)})")
    if ended.limit == "memory":
        peak = ended.peak_bytes >> 20
        return Unscored(FailureClass.AGENT_MEMORY, f"it used {peak} MB of memory, and {memory_mb} MB are allowed")
    return None


def _crash(ended: Ended, calls: AttemptReport, wrote: str) -> Unscored | None:
    if ended.limit == "processes":
        return Unscored(FailureClass.AGENT_CRASH, "it started too many processes and was ended")
    if ended.exit_code or not calls.answered:
        return Unscored(FailureClass.AGENT_CRASH, f"{_how(ended)}; {wrote}")
    return None


def _how(ended: Ended) -> str:
    return exit_text(ended.exit_code) if ended.exit_code is not None else "it did not start"


def tail(output: str) -> str:
    """The last lines of an output."""
    lines = [line for line in output.splitlines() if line.strip()]
    return "\n".join(lines[-MESSAGE_LINES:])[-TAIL_CHARS:]


class Masking:
    """Keeps the keys of an attempt out of what is recorded."""

    def __init__(self, environment: Mapping[str, str], others: Iterable[str]) -> None:
        named = (value for name, value in environment.items() if is_secret_key(name))
        found = {value for value in (*named, *others) if len(value) >= _SHORTEST_SECRET}
        self._secrets = sorted(found, key=len, reverse=True)  # one may be part of another

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


# ---- the answer ------------------------------------------------------------------------------------------------------
class AnswerError(ValueError):
    """A program did not leave its answer where it was expected."""


def answer_in(text: str, pointer: str) -> str:
    """The value that a JSON pointer names in the output of a program: one document, or the last line that is JSON."""
    value = _document(text)
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise AnswerError(f"there is no {pointer} in the output of the program") from None
    return value if isinstance(value, str) else json.dumps(value)


def _document(text: str) -> Any:
    candidates = [text, *reversed(text.strip().splitlines())]
    for candidate in candidates:
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    raise AnswerError("the output of the program is not JSON")
