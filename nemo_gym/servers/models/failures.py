"""Why a model gave no usable answer: one exception, its kind, and what to do about it. Pure.

The kind is for programs (it decides whether another attempt can help); the message and the hint are for people. They
name the endpoint and the model and never contain a key, even if the endpoint repeats it.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import orjson

from nemo_gym.errors import RolloutError
from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER, FailureClass
from nemo_gym.servers.http.retry import retry_after_seconds

if TYPE_CHECKING:
    from nemo_gym.servers.http.request_errors import RequestFailedError


MAX_EXCERPT: Final = 500


class ModelErrorKind(StrEnum):
    """What failed, from the caller's point of view."""

    RATE_LIMITED = FailureClass.RATE_LIMITED  # the endpoint has too much to do
    MODEL_ERROR = FailureClass.MODEL_ERROR  # the endpoint failed
    TIMEOUT = FailureClass.TIMEOUT  # no answer in time
    CONNECTION = FailureClass.CONNECTION  # no answer at all
    INVALID_RESPONSE = FailureClass.INVALID_RESPONSE  # an answer that can't be used
    AUTH = FailureClass.AUTH  # the key is wrong
    REJECTED = FailureClass.REJECTED  # the endpoint refused the request and would refuse it again


# The status of our own server's answer. It is never 401 or 404, because our server exists and needs no key.
STATUS_OF_KIND: Final[Mapping[ModelErrorKind, int]] = {
    ModelErrorKind.RATE_LIMITED: 429,
    ModelErrorKind.MODEL_ERROR: 502,
    ModelErrorKind.TIMEOUT: 504,
    ModelErrorKind.CONNECTION: 502,
    ModelErrorKind.INVALID_RESPONSE: 502,
    ModelErrorKind.AUTH: 502,
    ModelErrorKind.REJECTED: 400,
}

HINTS: Final[Mapping[ModelErrorKind, str]] = {
    ModelErrorKind.RATE_LIMITED: "send fewer requests: lower max_concurrent_requests or num_samples_in_parallel",
    ModelErrorKind.MODEL_ERROR: "the endpoint itself failed; its log says more",
    ModelErrorKind.TIMEOUT: "raise request_timeout_s, or ask for shorter answers (max_output_tokens)",
    ModelErrorKind.CONNECTION: "check that the endpoint is up and that its base URL is right",
    ModelErrorKind.INVALID_RESPONSE: "check that the base URL belongs to an OpenAI-compatible API; most end in /v1",
    ModelErrorKind.AUTH: "check the API key",
    ModelErrorKind.REJECTED: "the endpoint does not accept this request; its message above says why",
}
STREAM_HINT: Final = "ask the endpoint not to stream, or look at its log for why it stopped"
NOT_FOUND_HINT: Final = (
    "check the base URL and the model's name; for an endpoint that has only Chat Completions, "
    "set endpoint: chat_completions (openai_model) or use vllm_model"
)


class ModelCallError(RolloutError):
    """A model call failed, after all retries."""

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
        """The status to answer with."""
        return STATUS_OF_KIND[self.kind]

    def headers(self) -> dict[str, str]:
        """The headers to answer with."""
        headers = {FAILURE_CLASS_HEADER: str(self.kind)}
        if self.retry_after_s is not None:
            headers["Retry-After"] = f"{self.retry_after_s:g}"
        return headers

    def body(self) -> dict[str, Any]:
        """The body to answer with, in the shape of the protocol's own errors."""
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
        """An error of this model."""
        return ModelCallError(kind, self.redact(reason), endpoint=self.endpoint, model=self.model, **details)

    def no_answer(self, failure: "RequestFailedError") -> ModelCallError:
        """The error for a request without an answer."""
        kind = ModelErrorKind.TIMEOUT if isinstance(failure, TimeoutError) else ModelErrorKind.CONNECTION
        return self.error(kind, failure.reason or str(failure))

    def refusal(self, status: int, headers: Mapping[str, str], content: bytes, *, attempts: int = 1) -> ModelCallError:
        """The error for an answer with an error status, after the last attempt."""
        tries = f" ({attempts} attempts)" if attempts > 1 else ""
        return self.error(
            _kind_of_status(status),
            f"status {status}{tries}: {self._excerpt(content)}",
            hint=NOT_FOUND_HINT if status in (404, 405) else None,
            upstream_status=status,
            retry_after_s=retry_after_seconds(headers),
        )

    def unusable(self, content: bytes, reason: str, *, hint: str | None = None) -> ModelCallError:
        """The error for an answer with status 200 that can't be used."""
        error = error_object(content)
        if error is not None:
            limited = "rate_limit" in f"{error.get('code')} {error.get('type')}"
            kind = ModelErrorKind.RATE_LIMITED if limited else ModelErrorKind.MODEL_ERROR
            return self.error(kind, f"answered with an error: {self._excerpt(content)}", upstream_status=200)
        what = f"the answer is {reason}: {self._excerpt(content)}"
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
    if isinstance(body, dict) and body.get("object") == "error":  # vLLM's form
        return body
    found = body.get("error", body.get("detail")) if isinstance(body, dict) else None
    if not found:
        return None
    return found if isinstance(found, dict) else {"message": str(found)}


def _kind_of_status(status: int) -> ModelErrorKind:
    if status == 429:
        return ModelErrorKind.RATE_LIMITED
    if status in (401, 403):
        return ModelErrorKind.AUTH
    if status in (408, 504):
        return ModelErrorKind.TIMEOUT
    return ModelErrorKind.REJECTED if 400 <= status < 500 else ModelErrorKind.MODEL_ERROR
