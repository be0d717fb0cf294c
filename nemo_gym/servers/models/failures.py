"""Why a model gave no usable completion: one exception, its kind, and what to do about it. Pure.

The kind is for programs (it decides whether another attempt can help); the message and the hint are for people. They
name the endpoint and the model and never contain a key, even if the endpoint repeats it.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import orjson

from nemo_gym.errors import RolloutError
from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER, FailureClass
from nemo_gym.servers.http.retry import retry_after_seconds


class NoReply(Protocol):
    """Why a request got no reply: a ``RequestFailedError``, whose module imports aiohttp."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing was heard from the other side."""

    @property
    def is_too_large(self) -> bool: ...

    @property
    def reason(self) -> str: ...


MAX_EXCERPT: Final = 500
# What providers reply when an account has nothing left to spend (OpenAI, Anthropic, Azure, DeepSeek, OpenRouter, …).
QUOTA_STATUSES: Final = frozenset({400, 402, 403, 429})
QUOTA_CODES: Final = frozenset(
    {
        *("insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error"),
        *("insufficient_balance", "insufficient_balance_error", "insufficient_credits", "exceeded_current_quota_error"),
    }
)
QUOTA_TEXT: Final = re.compile(
    r"credit balance is too low|exceeded your current quota|out of call volume quota|billing hard limit"
    r"|(insufficient|not enough|out of|no) (credits?|balance|funds|quota)\b|(credit|spend|spending|usage) limit",
    re.IGNORECASE,
)
WAIT_TEXT: Final = re.compile(r"(retry|try again) (in|after) [\d.]+", re.IGNORECASE)
NOT_FOUND: Final = frozenset({404, 405})
# Statuses that do not show that an endpoint is the right one: anything that speaks HTTP may reply with them.
WRONG_PLACE: Final = frozenset({401, 403}) | NOT_FOUND


class ModelErrorKind(StrEnum):
    """What failed, from the caller's point of view."""

    RATE_LIMITED = FailureClass.RATE_LIMITED  # the endpoint has too much to do
    MODEL_ERROR = FailureClass.MODEL_ERROR  # the endpoint failed
    TIMEOUT = FailureClass.TIMEOUT  # no reply in time
    CONNECTION = FailureClass.CONNECTION  # no reply at all
    UNREACHABLE = FailureClass.UNREACHABLE  # no reply, or nothing at this address, and it was never different
    INVALID_RESPONSE = FailureClass.INVALID_RESPONSE  # a completion that can't be used
    AUTH = FailureClass.AUTH  # the key is wrong
    QUOTA = FailureClass.QUOTA  # the account has nothing left to spend
    REJECTED = FailureClass.REJECTED  # the endpoint refused the request and would refuse it again


# The status of our own server's reply. It is never 401 or 404, because our server exists and needs no key.
STATUS_OF_KIND: Final[Mapping[ModelErrorKind, int]] = {
    ModelErrorKind.RATE_LIMITED: 429,
    ModelErrorKind.MODEL_ERROR: 502,
    ModelErrorKind.TIMEOUT: 504,
    ModelErrorKind.CONNECTION: 502,
    ModelErrorKind.UNREACHABLE: 502,
    ModelErrorKind.INVALID_RESPONSE: 502,
    ModelErrorKind.AUTH: 502,
    ModelErrorKind.QUOTA: 502,
    ModelErrorKind.REJECTED: 400,
}

HINTS: Final[Mapping[ModelErrorKind, str]] = {
    ModelErrorKind.RATE_LIMITED: "send fewer requests: lower max_concurrent_requests or num_samples_in_parallel",
    ModelErrorKind.MODEL_ERROR: "the endpoint itself failed; its log says more",
    ModelErrorKind.TIMEOUT: "raise request_timeout_s, or limit completions (max_output_tokens)",
    ModelErrorKind.CONNECTION: "check that the endpoint is up and that its base URL is right",
    ModelErrorKind.UNREACHABLE: "check that the endpoint is up and that its base URL is right (host, port, https)",
    ModelErrorKind.INVALID_RESPONSE: "check that the base URL belongs to an OpenAI-compatible API; most end in /v1",
    ModelErrorKind.AUTH: "check the API key",
    ModelErrorKind.QUOTA: "add credit to the account, or raise its limit, and resume the run",
    ModelErrorKind.REJECTED: "the endpoint does not accept this request; its message above says why",
}
FORBIDDEN_HINT: Final = "check what the API key, its account and its region may use; the message above says why"
STREAM_HINT: Final = "set the endpoint not to stream, or look at its log for why it stopped"
TOO_LARGE_HINT: Final = "limit completions (max_output_tokens), or raise max_answer_bytes if such replies are meant"
NO_PATH_HINT: Final = "the base URL has no path, and most end in /v1"
NOT_FOUND_HINT: Final = (
    "check the base URL and the model's name; for an endpoint that has only Chat Completions, "
    "set endpoint: chat_completions (openai_model) or use vllm_model"
)


class ModelCallError(RolloutError):
    """A model call failed, after all retries.

    ``upstream_status`` is the status that the endpoint replied with, if it did; ``retry_after_s`` is the pause that it
    wants. Without a ``hint``, the one for this kind of failure is given.
    """

    def __init__(
        self,
        kind: ModelErrorKind,
        reason: str,
        *,
        endpoint: str,
        model: str,
        hint: str | None = None,
        upstream_status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"model {model} at {endpoint}: {reason}")
        self.kind = kind
        self.endpoint = endpoint
        self.model = model
        self.hint = hint or HINTS[kind]
        self.upstream_status = upstream_status
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return STATUS_OF_KIND[self.kind]

    def headers(self) -> dict[str, str]:
        headers = {FAILURE_CLASS_HEADER: str(self.kind)}
        if self.retry_after_s is not None:
            headers["Retry-After"] = f"{self.retry_after_s:g}"
        return headers

    def body(self) -> dict[str, Any]:
        """The body of the reply, in the shape of the protocol's own errors."""
        return {
            "error": {
                "type": str(self.kind),
                "message": str(self),
                "hint": self.hint,
                "endpoint": self.endpoint,
                "model": self.model,
                "upstream_status": self.upstream_status,
            }
        }


class ModelAddress:
    """Makes the errors of one model: knows its endpoint, its name and the secrets that must not be shown."""

    def __init__(self, endpoint: str, model: str, *, secrets: Iterable[str] = ()) -> None:
        self.endpoint = endpoint
        self.model = model
        # The longest first: a short secret may be part of a long one.
        self._secrets = sorted((secret for secret in secrets if len(secret) > 3), key=len, reverse=True)

    def error(self, kind: ModelErrorKind, reason: str, **details: Any) -> ModelCallError:
        return ModelCallError(kind, self.redact(reason), endpoint=self.endpoint, model=self.model, **details)

    def no_reply(self, failure: NoReply, *, has_answered: bool = True) -> ModelCallError:
        """The error for a request without a reply, of an endpoint that has or has never answered before."""
        if failure.is_too_large:
            return self.error(ModelErrorKind.INVALID_RESPONSE, failure.reason, hint=TOO_LARGE_HINT, upstream_status=200)
        kind = ModelErrorKind.TIMEOUT if isinstance(failure, TimeoutError) else ModelErrorKind.CONNECTION
        if failure.is_silent and not has_answered:
            kind = ModelErrorKind.UNREACHABLE
        return self.error(kind, failure.reason or str(failure))

    def refusal(
        self,
        status: int,
        headers: Mapping[str, str],
        content: bytes,
        *,
        attempts: int = 1,
        has_answered: bool = True,
    ) -> ModelCallError:
        """The error for a reply with an error status, after the last attempt."""
        tries = f" ({attempts} attempts)" if attempts > 1 else ""
        kind = _kind_of_status(status)
        if status in NOT_FOUND and not has_answered:
            kind = ModelErrorKind.UNREACHABLE
        elif is_out_of_quota(status, headers, content):
            kind, tries = ModelErrorKind.QUOTA, ""  # not tried again
        hints = dict.fromkeys(NOT_FOUND, self._not_found_hint(content)) | {403: FORBIDDEN_HINT}
        return self.error(
            kind,
            f"status {status}{tries}: {self._excerpt(content)}",
            hint=hints.get(status) if kind != ModelErrorKind.QUOTA else None,
            upstream_status=status,
            retry_after_s=retry_after_seconds(headers),
        )

    def _not_found_hint(self, content: bytes) -> str:
        """An API that finds the path but not the model replies with an error of its own; a web server does not."""
        is_bare = not urlsplit(self.endpoint).path.strip("/")
        is_api = len(error_object(content) or {}) > 1  # not only a message
        return f"{NO_PATH_HINT}; {NOT_FOUND_HINT}" if is_bare and not is_api else NOT_FOUND_HINT

    def unusable(self, content: bytes, reason: str, *, hint: str | None = None) -> ModelCallError:
        """The error for a reply with status 200 that can't be used."""
        error = error_object(content)
        if error is not None:
            limited = "rate_limit" in f"{error.get('code')} {error.get('type')}"
            kind = ModelErrorKind.RATE_LIMITED if limited else ModelErrorKind.MODEL_ERROR
            return self.error(kind, f"replied with an error: {self._excerpt(content)}", upstream_status=200)
        what = f"the reply is {reason}: {self._excerpt(content)}"
        return self.error(ModelErrorKind.INVALID_RESPONSE, what, hint=hint, upstream_status=200)

    def redact(self, text: str) -> str:
        """The text without our secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "****")
        return text

    def _excerpt(self, content: bytes) -> str:
        error = error_object(content)
        message = error.get("message") if error else None
        text = message if isinstance(message, str) and message else content.decode(errors="replace")
        # Redact before cutting, or half a key could remain.
        text = self.redact(" ".join(text.split()))
        return (text[:MAX_EXCERPT] + " …" if len(text) > MAX_EXCERPT else text) or "(empty)"


def error_object(content: bytes) -> dict[str, Any] | None:
    """The error in a JSON body as an object, or None if it reports no error."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    if isinstance(body, list) and len(body) == 1:  # Google's form
        body = body[0]
    if isinstance(body, dict) and body.get("object") == "error":  # vLLM's form
        return body
    found = body.get("error", body.get("detail")) if isinstance(body, dict) else None
    if not found:
        return None
    return found if isinstance(found, dict) else {"message": str(found)}


def is_out_of_quota(status: int, headers: Mapping[str, str], content: bytes) -> bool:
    """Whether an endpoint refuses because there is nothing left to spend, which no waiting changes.

    Providers use several statuses for it, and most of them share their status with rate limits. Where only the text
    tells the two apart, a time to wait means a rate limit.
    """
    if status not in QUOTA_STATUSES:
        return False
    error = error_object(content) or {}
    if QUOTA_CODES & {str(error.get(name)).lower() for name in ("code", "type")}:
        return True
    text = str(error.get("message") or content[:4096].decode(errors="replace"))
    has_text = status == 402 or QUOTA_TEXT.search(text) is not None
    return has_text and (b"PerDay" in content or not (retry_after_seconds(headers) or WAIT_TEXT.search(text)))


def _kind_of_status(status: int) -> ModelErrorKind:
    if status == 429:
        return ModelErrorKind.RATE_LIMITED
    if status in (401, 403):
        return ModelErrorKind.AUTH
    if status in (408, 504):
        return ModelErrorKind.TIMEOUT
    return ModelErrorKind.REJECTED if 400 <= status < 500 else ModelErrorKind.MODEL_ERROR
