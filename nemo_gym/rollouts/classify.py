"""Reads what came back from an agent: the one place where a reply or an exception becomes an outcome.

A server can state why it failed in a header of its reply (``X-NG-Failure-Class``, and ``Retry-After`` if waiting helps)
or in the body (``{"_ng_failure_class": …}``); servers in between pass that on. Without it, the status decides.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from nemo_gym.errors import RolloutError
from nemo_gym.io.json import decode, decode_exactly
from nemo_gym.rollouts.store.outcome import Completed, Failed, Failure, Outcome, PlannedRollout, Vanished
from nemo_gym.rollouts.store.saved_lines import encode_keyed
from nemo_gym.schemas.record import Record, Usage
from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_KEY_NAME,
    FAILURE_CLASS_HEADER,
    NG_FAILURE_CLASS_KEY,
    NG_NO_PERSIST_KEY,
    NG_OWED_KEY,
    NG_TERMINAL_KEY,
    SKILLS_REF_KEY_NAME,
    USAGE_HEADER,
    FailureClass,
)
from nemo_gym.servers.http.connections import aiohttp
from nemo_gym.servers.http.retry import retry_after_seconds
from nemo_gym.servers.middleware.faults import first_cause

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


def result_of_reply(
    planned: PlannedRollout, status: int, headers: Mapping[str, str], body: bytes, seconds: float
) -> dict[str, Any] | Failed:
    """The result in the agent's reply to ``/run``, or the failure that the reply is."""
    if status >= 400:
        return failed(planned, failure_of_status(status, headers, body), seconds, spent_before(headers))
    try:
        record = decode_exactly(body)
    except (ValueError, RecursionError) as error:
        return failed(planned, _unreadable(f"not JSON: {error}", status, body), seconds)
    if not isinstance(record, dict):
        return failed(planned, _unreadable("not a JSON object", status, body), seconds)
    return record


def outcome_of_reply(
    planned: PlannedRollout, status: int, headers: Mapping[str, str], body: bytes, seconds: float
) -> Outcome:
    """The outcome of an attempt, given a reply that has the whole result."""
    result = result_of_reply(planned, status, headers, body, seconds)
    return result if isinstance(result, Failed) else outcome_of_record(planned, result, seconds)


def outcome_of_record(planned: PlannedRollout, record: dict[str, Any], seconds: float) -> Outcome:
    """The outcome of an attempt, given its result, which may itself report a failure."""
    kind = record.get(NG_FAILURE_CLASS_KEY)
    if kind is not None and planned.attempt > 1:
        record[ATTEMPT_KEY_NAME] = planned.attempt
    try:
        line = _stamped(planned, record)
    except ValueError as error:  # nested too deeply to be written again
        return failed(planned, Failure.of(FailureClass.INVALID_RESPONSE, f"the agent's reply is {error}"), seconds)
    if record.get(NG_NO_PERSIST_KEY):
        return Vanished(planned, line, seconds, str(kind or "unnamed"))
    row = Record(record)
    if kind is not None:
        message = str(record.get("error_message") or "")[:MESSAGE_CHARS]
        own = Failure(kind=str(kind), message=message, terminal=bool(record.get(NG_TERMINAL_KEY)))
        return Failed(planned, line, seconds, own, row.usage)
    return Completed(planned, line, seconds, row.reward, row.usage, row.is_masked)


def outcome_of_error(planned: PlannedRollout, error: Exception, seconds: float) -> Outcome:
    """The outcome of an attempt that raised one of the ``expected_errors``."""
    return failed(planned, failure_of_error(error), seconds)


def spent_before(headers: Mapping[str, str]) -> Usage | None:
    """What an error reply reports about the tokens that were spent before the error."""
    with suppress(ValueError):
        return Usage.of(decode(headers.get(USAGE_HEADER) or "null"))
    return None


def failed(planned: PlannedRollout, failure: Failure, seconds: float, usage: Usage | None = None) -> Failed:
    """The outcome of an attempt that failed without a reply of the agent itself."""
    record = {
        NG_FAILURE_CLASS_KEY: failure.kind,
        NG_TERMINAL_KEY: failure.terminal or None,
        NG_OWED_KEY: failure.outside or None,
        "error_message": failure.message,
        ATTEMPT_KEY_NAME: planned.attempt,
        "_ng_duration_s": round(seconds, 3),
        "_ng_http_status": failure.http_status,
        "_ng_http_body": failure.http_body,
        **(usage.as_fields() if usage is not None else {}),
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
    """What an error reply means."""
    content: Any = None
    with suppress(ValueError):
        content = decode(body)
    claims: Mapping[str, Any] = content if isinstance(content, dict) else {}
    # The header first: servers in between pass it on unchanged, but may wrap the body in another error.
    kind = headers.get(FAILURE_CLASS_HEADER) or claims.get(NG_FAILURE_CLASS_KEY)
    return Failure.of(
        str(kind or _BY_STATUS.get(status, FailureClass.AGENT_ERROR)),
        f"HTTP {status}: {_message_of(content) or first_cause(body).strip()}"[:MESSAGE_CHARS],
        terminal=bool(claims.get(NG_TERMINAL_KEY)),
        retry_after_s=retry_after_seconds(headers),
        http_status=status,
        http_body=_text(body)[:BODY_CHARS],
    )


def _unreadable(reason: str, status: int, body: bytes) -> Failure:
    return Failure.of(
        FailureClass.INVALID_RESPONSE,
        f"the agent's reply is {reason}"[:MESSAGE_CHARS],
        http_status=status,
        http_body=_text(body)[:BODY_CHARS],
    )


def _stamped(planned: PlannedRollout, record: dict[str, Any]) -> bytes:
    """The line of a record, with the planned key, agent and skills, whatever the reply claims."""
    record[AGENT_REF_KEY_NAME] = planned.outline.get(AGENT_REF_KEY_NAME)
    if SKILLS_REF_KEY_NAME in planned.outline:
        record[SKILLS_REF_KEY_NAME] = planned.outline[SKILLS_REF_KEY_NAME]
    return encode_keyed(planned.key, record)


def _message_of(content: Any) -> str:
    """The readable message of an error object, wherever the usual frameworks put it."""
    found = content
    while isinstance(found, dict):
        found = next((found[name] for name in ("detail", "error", "message") if found.get(name)), None)
    return found if isinstance(found, str) and isinstance(content, dict) else ""


def _text(body: bytes) -> str:
    return body[: 4 * BODY_CHARS].decode(errors="replace").strip()
