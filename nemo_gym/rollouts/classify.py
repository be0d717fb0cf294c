"""Reads what came back from an agent: the one place where an answer or an exception becomes an outcome.

A server can say why it failed in a header of its error answer (``X-NG-Failure-Class``, and ``Retry-After`` if waiting
helps) or in the body (``{"_ng_failure_class": …}``); servers in between pass that on. Without it, the status decides.

Almost every answer is a plain scored rollout. It goes to the file as it came, with its key around it, if it is valid
JSON on one line and does not itself mention its key, its agent or a failure (``plain_result``). Everything else is
parsed, so the fast path never changes a result.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from nemo_gym.errors import RolloutError
from nemo_gym.io.json import decode, encode
from nemo_gym.rollouts.outcome import Completed, Failed, Failure, Outcome, Usage, Vanished
from nemo_gym.rollouts.plan import PlannedRollout
from nemo_gym.rollouts.store.saved_lines import encode_keyed
from nemo_gym.rollouts.tally import usage_in, usage_record
from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_KEY_NAME,
    FAILURE_CLASS_HEADER,
    NG_FAILURE_CLASS_KEY,
    NG_NO_PERSIST_KEY,
    NG_OWED_KEY,
    NG_TERMINAL_KEY,
    RESPONSE_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
    USAGE_HEADER,
    FailureClass,
)
from nemo_gym.servers.faults import first_cause
from nemo_gym.servers.http.connections import aiohttp
from nemo_gym.servers.http.retry import retry_after_seconds
from nemo_gym.servers.verdicts import ScoredResponse, outline_of_verdict

_LINE = f'{{"{TASK_INDEX_KEY_NAME}":%d,%b,"{AGENT_REF_KEY_NAME}":%b,"{ROLLOUT_INDEX_KEY_NAME}":%d}}'.encode()


@dataclass(slots=True)
class PlainResult:
    """A scored rollout, ready to be saved."""

    line: bytes
    reward: Any
    usage: Usage | None


def plain_result(planned: PlannedRollout, body: bytes) -> PlainResult | None:
    """The line for an answer, and its reward; None if the answer has to be parsed."""
    fields = body[1:-1]
    if b"\n" in body or not (body.startswith(b"{") and body.endswith(b"}")) or SKILLS_REF_KEY_NAME in planned.outline:
        return None
    try:
        if not body.isascii():
            str(body, "utf-8")  # the decoder does not look into strings that it skips
        seen = outline_of_verdict(body)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    # A field that the answer sets itself would be in the line twice, and readers would not agree on which one counts.
    # The tokens of judges are rare, and counted where everything is parsed.
    if not (
        seen.task is seen.rollout is seen.agent is seen.skills is seen.failure is seen.unsaved is seen.judges is UNSET
        and fields.strip()
    ):
        return None
    key, agent = planned.key, encode(planned.outline.get(AGENT_REF_KEY_NAME))
    return PlainResult(_LINE % (key.task, fields, agent, key.rollout), seen.reward, _usage(seen.response))


def _usage(response: ScoredResponse | UnsetType | None) -> Usage | None:
    usage = response.usage if response else None
    if usage is None:
        return None
    if usage.spent is not None:
        return Usage(usage.spent.input_tokens, usage.spent.output_tokens, usage.spent.cached_tokens)
    cached = usage.input_tokens_details
    return Usage(usage.input_tokens, usage.output_tokens, (cached.cached_tokens or 0) if cached else 0)


BODY_CHARS: Final = 4000
MESSAGE_CHARS: Final = 500

_BY_STATUS: Final = {
    408: FailureClass.TIMEOUT,
    429: FailureClass.RATE_LIMITED,
    502: FailureClass.CONNECTION,
    503: FailureClass.CONNECTION,
    504: FailureClass.TIMEOUT,
}


def expected_errors() -> tuple[type[Exception], ...]:
    """What an attempt may raise; a function, because aiohttp is not imported before something was raised."""
    return (TimeoutError, aiohttp.ClientError, OSError, RolloutError)


def outcome_of_answer(
    planned: PlannedRollout, status: int, headers: Mapping[str, str], body: bytes, seconds: float
) -> Outcome:
    """The outcome of an attempt, given the agent's answer to ``/run``."""
    if status >= 400:
        return failed(planned, failure_of_status(status, headers, body), seconds, spent_before(headers))
    if (plain := plain_result(planned, body)) is not None:
        return Completed(planned, plain.line, seconds, _number(plain.reward), plain.usage)
    try:
        record = decode(body)
    except ValueError as error:
        return failed(planned, _unreadable(f"not JSON: {error}", status, body), seconds)
    if not isinstance(record, dict):
        return failed(planned, _unreadable("not a JSON object", status, body), seconds)
    return outcome_of_record(planned, record, seconds)


def outcome_of_record(planned: PlannedRollout, record: dict[str, Any], seconds: float) -> Outcome:
    """The outcome of an attempt, given its result, which may itself report a failure."""
    kind = record.get(NG_FAILURE_CLASS_KEY)
    if kind is not None and planned.attempt > 1:
        record[ATTEMPT_KEY_NAME] = planned.attempt
    try:
        line = _stamped(planned, record)
    except ValueError as error:  # nested too deeply to be written again
        return failed(planned, Failure.of(FailureClass.INVALID_RESPONSE, f"the agent's answer is {error}"), seconds)
    if record.get(NG_NO_PERSIST_KEY):
        return Vanished(planned, line, seconds, str(kind or "unnamed"))
    if kind is not None:
        message = str(record.get("error_message") or "")[:MESSAGE_CHARS]
        own = Failure(kind=str(kind), message=message, terminal=bool(record.get(NG_TERMINAL_KEY)))
        return Failed(planned, line, seconds, own, usage_in(record))
    return Completed(planned, line, seconds, _number(record.get("reward")), usage_in(record))


def _number(reward: Any) -> float | None:
    return float(reward) if isinstance(reward, int | float) else None


def outcome_of_error(planned: PlannedRollout, error: Exception, seconds: float) -> Outcome:
    """The outcome of an attempt that raised one of the ``expected_errors``."""
    return failed(planned, failure_of_error(error), seconds)


def spent_before(headers: Mapping[str, str]) -> Usage | None:
    """What an error answer reports about the tokens that were spent before the error."""
    with suppress(ValueError):
        return usage_in({RESPONSE_KEY_NAME: {"usage": decode(headers.get(USAGE_HEADER) or "null")}})
    return None


def failed(planned: PlannedRollout, failure: Failure, seconds: float, usage: Usage | None = None) -> Failed:
    """The outcome of an attempt that failed without an answer by the agent itself."""
    record = {
        NG_FAILURE_CLASS_KEY: failure.kind,
        NG_TERMINAL_KEY: failure.terminal or None,
        NG_OWED_KEY: failure.outside or None,
        "error_message": failure.message,
        ATTEMPT_KEY_NAME: planned.attempt,
        "_ng_duration_s": round(seconds, 3),
        "_ng_http_status": failure.http_status,
        "_ng_http_body": failure.http_body,
        **(usage_record(usage) if usage is not None else {}),
    }
    known = {name: value for name, value in record.items() if value is not None}
    return Failed(planned, _stamped(planned, known), seconds, failure, usage)


def failure_of_error(error: Exception) -> Failure:
    """What an exception of the transport means."""
    if isinstance(error, aiohttp.ClientResponseError):
        body = getattr(error, "response_content", b"")
        return failure_of_status(error.status, error.headers or {}, body)
    message = (str(error) or type(error).__name__)[:MESSAGE_CHARS]
    if isinstance(error, TimeoutError):
        return Failure.of(FailureClass.TIMEOUT, message)
    if isinstance(error, RolloutError):
        return Failure.of(FailureClass.AGENT_ERROR, message)
    return Failure.of(FailureClass.CONNECTION, f"{type(error).__name__}: {message}")


def failure_of_status(status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    """What an error answer means."""
    content: Any = None
    with suppress(ValueError):
        content = decode(body)
    claims: Mapping[str, Any] = content if isinstance(content, dict) else {}
    # The header first: servers in between pass it on unchanged, but may wrap the body in another error.
    kind = headers.get(FAILURE_CLASS_HEADER) or claims.get(NG_FAILURE_CLASS_KEY)
    return Failure.of(
        str(kind or _BY_STATUS.get(status, FailureClass.AGENT_ERROR)),
        f"HTTP {status}: {_words(content) or first_cause(body).strip()}"[:MESSAGE_CHARS],
        terminal=bool(claims.get(NG_TERMINAL_KEY)),
        retry_after_s=retry_after_seconds(headers),
        http_status=status,
        http_body=_text(body)[:BODY_CHARS],
    )


def _unreadable(reason: str, status: int, body: bytes) -> Failure:
    return Failure.of(
        FailureClass.INVALID_RESPONSE,
        f"the agent's answer is {reason}"[:MESSAGE_CHARS],
        http_status=status,
        http_body=_text(body)[:BODY_CHARS],
    )


def _stamped(planned: PlannedRollout, record: dict[str, Any]) -> bytes:
    """The line of a record, with the planned key, agent and skills, whatever the answer claims."""
    record[AGENT_REF_KEY_NAME] = planned.outline.get(AGENT_REF_KEY_NAME)
    if SKILLS_REF_KEY_NAME in planned.outline:
        record[SKILLS_REF_KEY_NAME] = planned.outline[SKILLS_REF_KEY_NAME]
    return encode_keyed(planned.key, record)


def _words(content: Any) -> str:
    """The readable message of an error object, wherever the usual frameworks put it."""
    said = content
    while isinstance(said, dict):
        said = next((said[name] for name in ("detail", "error", "message") if said.get(name)), None)
    return said if isinstance(said, str) and isinstance(content, dict) else ""


def _text(body: bytes) -> str:
    return body[: 4 * BODY_CHARS].decode(errors="replace").strip()
