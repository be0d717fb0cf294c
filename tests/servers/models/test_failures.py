"""Why a model gave no answer: the right kind, useful words, no secrets."""

import pytest

from nemo_gym.errors import RolloutError
from nemo_gym.servers.http.request_errors import RequestFailedError, RequestTimeoutError
from nemo_gym.servers.models.completion_reader import CompletionReader
from nemo_gym.servers.models.failures import ModelAddress, ModelCallError, error_object

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


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, '{"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}'),
        (400, '{"error": {"message": "Billing hard limit has been reached", "code": "billing_hard_limit_reached"}}'),
        (429, '{"error": {"message": "Your account is not active", "type": "billing_not_active"}}'),
        (
            400,
            '{"type": "error", "error": {"type": "invalid_request_error", "message": "Credit balance is too low"}}',
        ),
        (403, '{"type": "error", "error": {"type": "billing_error", "message": "see the console"}}'),
        (
            429,
            '[{"error": {"code": 429, "message": "You exceeded your current quota", "status": "RESOURCE_EXHAUSTED"}}]',
        ),
        (403, '{"error": {"message": "Out of call volume quota. Quota will be replenished in 02:00:00"}}'),
        (402, '{"error": {"message": "Insufficient credits. Add more", "code": 402}}'),
        (402, ""),
        (429, '{"error": {"message": "Credit limit exceeded, please add a payment method"}}'),
    ],
)
def test_an_empty_account_is_not_a_rate_limit_and_the_provider_says_it(status: int, body: str) -> None:
    error = ADDRESS.refusal(status, {}, body.encode(), attempts=9)

    assert (error.kind, error.status) == ("quota", 502)
    assert "add credit" in error.hint
    message = (error_object(body.encode()) or {}).get("message", "(empty)")
    assert str(error).endswith(f"status {status}: {message}")


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (429, {}, '{"error": {"message": "Rate limit reached for requests", "code": "rate_limit_exceeded"}}'),
        (429, {}, '[{"error": {"message": "You exceeded your current quota. Please retry in 36.1s.", "code": 429}}]'),
        (429, {"Retry-After": "7"}, '{"error": {"message": "You exceeded your current quota"}}'),
        (429, {}, '{"error": {"message": "exceeded token rate limit. Please retry after 6 seconds.", "code": "429"}}'),
        (429, {}, ""),
    ],
)
def test_what_passes_by_itself_is_a_rate_limit(status: int, headers: dict[str, str], body: str) -> None:
    assert ADDRESS.refusal(status, headers, body.encode()).kind == "rate_limited"


@pytest.mark.parametrize(
    "body", ['{"error": {"message": "Region not supported"}}', '{"message": "Region not supported"}']
)
def test_a_403_shows_its_reason(body: str) -> None:
    error = ADDRESS.refusal(403, {}, body.encode())

    assert "Region not supported" in str(error)
    assert "region" in error.hint


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
    assert ADDRESS.no_reply(failure).kind == kind


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


MESSAGE = (
    '{"id": "c", "created": 1, "model": "m", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": '
)
MESSAGE += '"stop", "logprobs": null, "message": {"role": "assistant", "content": "TEXT"}, "score": SCORE}]}'
RESPONSE = (
    '{"id": "r", "created_at": 1, "model": "m", "object": "response", "output": [], "parallel_tool_calls": true, '
)
RESPONSE += '"tool_choice": "auto", "tools": [], "status": "completed", "score": SCORE, "note": "TEXT"}'
CHUNK = (
    'data: {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk", "choices": [{"index": 0, '
    '"delta": {"role": "assistant", "content": "TEXT"}, "finish_reason": "stop", "score": SCORE}]}\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
@pytest.mark.parametrize("form", [MESSAGE, RESPONSE, CHUNK])
def test_a_completion_with_a_number_that_json_does_not_have_is_invalid(form: str, number: str) -> None:
    body = form.replace("TEXT", "0/0 is NaN, not Infinity").replace("SCORE", number).encode()
    reader = CompletionReader(ADDRESS)
    with pytest.raises(ModelCallError) as caught:
        reader.response(body, {}) if form == RESPONSE else reader.chat_completion(body)
    assert caught.value.kind == "invalid_response"


def test_a_completion_may_speak_of_nan() -> None:
    body = MESSAGE.replace("TEXT", "0/0 is NaN").replace("SCORE", "1").encode()
    assert CompletionReader(ADDRESS).chat_completion(body).choices[0].message.content == "0/0 is NaN"


@pytest.mark.parametrize(
    ("base_url", "content", "is_path"),
    [
        ("http://127.0.0.1:8000", b'{"detail":"Not Found"}', True),
        ("http://127.0.0.1:8000/", b"<html>no</html>", True),
        ("http://127.0.0.1:8000/v1", b'{"detail":"Not Found"}', False),
        ("https://api.anthropic.com", b'{"error":{"type":"not_found_error","message":"model: x"}}', False),
    ],
)
def test_a_base_url_without_a_path_is_suspected_unless_an_api_replied(
    base_url: str, content: bytes, is_path: bool
) -> None:
    error = ModelAddress(base_url, "qwen").refusal(404, {}, content)
    assert ("most end in /v1" in error.hint) is is_path
