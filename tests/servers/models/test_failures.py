"""Why a model gave no answer: the right kind, useful words, no secrets."""

import pytest

from nemo_gym.errors import RolloutError
from nemo_gym.servers.http.request_errors import RequestFailedError, RequestTimeoutError
from nemo_gym.servers.models.failures import ModelAddress

SECRETS = ["sk-very-secret", "sk-very-secret-indeed", "", "ab"]
ADDRESS = ModelAddress("http://127.0.0.1:1/v1", "qwen", secrets=SECRETS)


@pytest.mark.parametrize(
    ("status", "kind", "ours"),
    [
        (400, "rejected", 400),
        (401, "auth", 502),
        (403, "auth", 502),
        (404, "rejected", 400),
        (408, "timeout", 504),
        (422, "rejected", 400),
        (429, "rate_limited", 429),
        (500, "model_error", 502),
        (503, "model_error", 502),
        (504, "timeout", 504),
        (520, "model_error", 502),
    ],
)
def test_the_status_decides_the_kind(status: int, kind: str, ours: int) -> None:
    error = ADDRESS.refusal(status, {"Retry-After": "3"}, b'{"error": {"message": "words"}}')

    assert isinstance(error, RolloutError)
    assert (error.kind, error.status) == (kind, ours)
    assert str(error) == f"model qwen at http://127.0.0.1:1/v1: status {status}: words"
    assert error.headers() == {"X-NG-Failure-Class": kind, "Retry-After": "3"}
    assert error.body()["error"].items() >= {"type": kind, "upstream_status": status, "model": "qwen"}.items()
    assert error.body()["error"]["hint"]


def test_a_missing_model_or_route_hints_at_both() -> None:
    hint = ADDRESS.refusal(404, {}, b"").hint

    assert "base URL" in hint
    assert "endpoint: chat_completions" in hint


def test_the_number_of_attempts_is_told() -> None:
    assert "status 429 (9 attempts): (empty)" in str(ADDRESS.refusal(429, {}, b"", attempts=9))


@pytest.mark.parametrize(
    ("failure", "kind"), [(RequestTimeoutError("late"), "timeout"), (RequestFailedError("gone"), "connection")]
)
def test_no_answer_is_a_timeout_or_a_connection(failure: RequestFailedError, kind: str) -> None:
    assert ADDRESS.no_answer(failure).kind == kind


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error": {"message": "overloaded", "type": "server_error"}}', "model_error"),
        (b'{"error": {"message": "slow down", "code": "rate_limit_exceeded"}}', "rate_limited"),
        (b'{"error": "broken"}', "model_error"),
        (b'{"detail": "broken"}', "model_error"),
        (b'{"error": null, "hello": 1}', "invalid_response"),
        (b'{"hello": ["world"]}', "invalid_response"),
        (b"[1]", "invalid_response"),
        (b"<html>", "invalid_response"),
        (b"", "invalid_response"),
        (b"\xff\xfe", "invalid_response"),
    ],
)
def test_a_good_status_with_a_bad_body_is_told_apart(body: bytes, kind: str) -> None:
    error = ADDRESS.unusable(body, "no response")

    assert (error.kind, error.upstream_status) == (kind, 200)


@pytest.mark.parametrize("secret", ["sk-very-secret", "sk-very-secret-indeed"])
def test_a_secret_that_the_endpoint_repeats_is_not_repeated(secret: str) -> None:
    # The secret lies across the place where long texts are cut.
    body = f'{{"error": {{"message": "{"x" * 490} Incorrect key: {secret}"}}}}'.encode()

    for error in (ADDRESS.refusal(401, {}, body), ADDRESS.unusable(body, secret), ADDRESS.unusable(b"", secret)):
        assert "sk-" not in str(error)
        assert "indeed" not in str(error)
        assert "sk-" not in str(error.body())


def test_long_answers_are_cut() -> None:
    assert len(str(ADDRESS.refusal(500, {}, b"<html>" + b"x" * 100_000))) < 600
