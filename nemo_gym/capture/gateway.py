"""The attempts that programs may call a model for, each under an address and a secret of its own. Pure.

An attempt is open from the moment its agent opens it until the agent closes it, which is before its result is verified:
whatever a program asks afterwards can't change the result, and is only counted. Who has another key gets nothing, and
the key of one attempt opens no other. Every call of an open attempt is kept (``calls``), with or without tokens.
"""

import hmac
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from enum import StrEnum
from secrets import token_hex, token_urlsafe
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from nemo_gym.capture.calls import AttemptCalls, CapturedCall
from nemo_gym.capture.program_calls import ProgramCall, main_chain, mark_side_calls
from nemo_gym.conversion.parts import CALL_REFERENCE

ID_FORM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.g[0-9a-f]{16}")
MOST_CLOSED: Final = 1024  # attempts that are remembered to say that they are closed, and how many calls came too late
MOST_REFUSALS: Final = 20  # that are shown
USAGE_KEYS: Final = ("input_tokens", "output_tokens", "total_tokens")


class Access(StrEnum):
    """What a key opens."""

    OPEN = "open"
    WRONG_KEY = "wrong_key"
    CLOSED = "closed"


class _Reported(BaseModel):
    model_config = ConfigDict(frozen=True)


class Refusal(_Reported):
    """A request of the program that this Gym refused."""

    status: int
    message: str
    path: str


class CallFailure(_Reported):
    """Why the endpoint gave no completion."""

    kind: str
    message: str


class AttemptReport(_Reported):
    """What a program asked of its model."""

    response: dict[str, Any] | None = None  # the chain of calls that ends in the last one, as one response
    answer: str = ""  # the last text of it
    calls: int = 0
    answered: int = 0
    cancelled: int = 0  # calls that were running when the attempt was closed
    late: int = 0  # calls after that
    refused: list[Refusal] = []
    left_out: list[str] = []  # what no model here can do: hosted tools, unknown options
    last_status: int | None = None
    last_failure: CallFailure | None = None  # only if the last call failed because of the endpoint
    waited_s: float = 0.0  # how long calls were held because the endpoint was down
    started: float | None = None  # of the first call
    ended: float | None = None  # of the last one
    protocols: list[str] = []
    disagreements: list[str] = []  # between the program's own names for its threads and what its requests say


@dataclass(slots=True)
class GatewayAttempt:
    """One attempt."""

    server: str  # the model server that may be called
    mark: str
    store: AttemptCalls
    context: Context  # of the agent that opened it: what is known there about the attempt holds for its calls
    id: str
    key: str = field(default_factory=lambda: f"ng-{token_urlsafe(24)}", repr=False)
    calls: list[ProgramCall] = field(default_factory=list)
    running: set[Any] = field(default_factory=set)  # tasks
    refused: list[Refusal] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    late: int = 0
    cancelled: int = 0
    waited_s: float = 0.0
    patience_s: float = 600.0
    is_collected: bool = True  # whether somebody takes its calls in the end
    report: AttemptReport | None = None  # once it is closed

    def access(self, key: str) -> Access:
        """What a key opens."""
        if not hmac.compare_digest(key.encode("utf-8", "replace"), self.key.encode()):
            return Access.WRONG_KEY
        return Access.OPEN if self.report is None else Access.CLOSED

    def refuse(self, status: int, message: str, path: str) -> None:
        """Note a request that was refused."""
        if len(self.refused) < MOST_REFUSALS:
            self.refused.append(Refusal(status=status, message=message[:500], path=path))

    def summary(self) -> AttemptReport:
        """What has been asked so far."""
        answered = [each for each in self.calls if each.call is not None]
        mark_side_calls(answered)
        chain = main_chain(answered)
        last = self.calls[-1] if self.calls else None
        return AttemptReport(
            response=_response(chain, answered) if chain else None,
            answer=next((text for each in reversed(chain) if (text := each.text)), ""),
            calls=len(self.calls),
            answered=len(answered),
            cancelled=self.cancelled,
            late=self.late,
            refused=self.refused,
            left_out=sorted(self.left_out),
            last_status=last.status if last is not None else None,
            last_failure=CallFailure(kind=last.failure, message=last.message) if last and last.failure else None,
            waited_s=round(self.waited_s, 3),
            started=self.calls[0].started if self.calls else None,
            ended=max((each.ended for each in self.calls), default=None),
            protocols=sorted({str(each.dialect) for each in self.calls}),
            disagreements=[text for each in answered if (text := each.disagreement)],
        )


def _response(chain: list[ProgramCall], answered: list[ProgramCall]) -> dict[str, Any]:
    """A chain of calls as one response: what its first call was asked is not in it, all that came after is."""
    output = list(_items(chain))
    usages = [each.usage for each in answered if each.usage]
    last = chain[-1]
    return {
        "id": f"resp_{token_hex(16)}",
        "created_at": float(int(last.ended)),
        "incomplete_details": {"reason": last.incomplete} if last.incomplete else None,
        "model": last.model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "status": "incomplete" if last.incomplete else "completed",
        "tool_choice": "auto",
        "tools": [],
        "usage": _total(usages) if usages else None,
    }


def _items(chain: list[ProgramCall]) -> Iterator[dict[str, Any]]:
    for place, each in enumerate(chain):
        assert each.call is not None
        if place:
            yield from each.added
        *before, last = each.answer or [_silence(each.call)]
        yield from before
        yield {**last, CALL_REFERENCE: each.call.id}


def _silence(call: CapturedCall) -> dict[str, Any]:
    """The item of a completion that says nothing."""
    content = [{"type": "output_text", "text": "", "annotations": []}]
    return {"id": f"msg_{call.id}", "type": "message", "role": "assistant", "status": "completed", "content": content}


def _total(usages: list[Mapping[str, Any]]) -> dict[str, Any]:
    def of(part: str, name: str) -> int:
        return sum((usage.get(part) or {}).get(name) or 0 for usage in usages)

    return {
        **{key: sum(usage.get(key) or 0 for usage in usages) for key in USAGE_KEYS},
        "input_tokens_details": {"cached_tokens": of("input_tokens_details", "cached_tokens")},
        "output_tokens_details": {"reasoning_tokens": of("output_tokens_details", "reasoning_tokens")},
    }


class Gateway:
    """The attempts of the model servers of one process."""

    def __init__(self) -> None:
        self._open: dict[str, GatewayAttempt] = {}
        self._closed: OrderedDict[str, GatewayAttempt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self, server: str, store: AttemptCalls, *, mark: str, name: str, context: Context, patience_s: float = 600.0
    ) -> GatewayAttempt:
        """Open an attempt; ``name`` is what people call it."""
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-") or "attempt"
        attempt = GatewayAttempt(server, mark, store, context, f"{plain}.g{token_hex(8)}", patience_s=patience_s)
        self._open[attempt.id] = attempt
        return attempt

    def find(self, name: str) -> GatewayAttempt | None:
        """The attempt of an address, open or closed; None if there is none, or if it was closed long ago."""
        return self._open.get(name) or self._closed.get(name)

    def close(self, attempt: GatewayAttempt) -> AttemptReport:
        """Close an attempt for good. Whoever closes it again gets the same report, with all late calls."""
        if attempt.report is None:
            attempt.cancelled = len(attempt.running)
            for task in attempt.running:
                task.cancel()
            attempt.report = attempt.summary()
            attempt.calls.clear()
            self._open.pop(attempt.id, None)
            self._closed[attempt.id] = attempt
            if len(self._closed) > MOST_CLOSED:
                self._closed.popitem(last=False)
        return attempt.report.model_copy(update={"late": attempt.late, "cancelled": attempt.cancelled})
