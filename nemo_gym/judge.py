"""Front door: model judges, for verifiers that can't decide by themselves.

    self._judge = Judge(self.config.judge, self.server_client)
    verdict = await self._judge.ask(question=…, expected=…, answer=…)

A ``JudgeConfig`` says what the judge is asked and how its answer becomes a score; a ``Judge`` asks. A verifier that
writes its own questions uses ``call_judge``. A judge that can't be reached, or whose answer can't be read, raises a
``JudgeError``: the rollout fails and is tried again. A failed judge never becomes a reward of 0.
"""

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from string import Formatter
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from starlette.responses import JSONResponse

from nemo_gym.errors import RolloutError
from nemo_gym.schemas.chat import NeMoGymChatCompletion
from nemo_gym.schemas.refs import ModelServerRef
from nemo_gym.schemas.responses import NeMoGymResponse
from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER, NG_FAILURE_CLASS_KEY, FailureClass
from nemo_gym.servers.faults import first_cause
from nemo_gym.servers.http.connections import request_errors
from nemo_gym.servers.server_client import GymClient
from nemo_gym.servers.verdicts import count_judge, judge_usage

__all__ = [
    "Judge",
    "JudgeConfig",
    "JudgeError",
    "SwapCheck",
    "Verdict",
    "call_judge",
    "every_verdict",
    "judge_failsafe",
    "reraise_judge_errors",
]


class SwapCheck(BaseModel):
    """Ask again with two fields swapped: a judge that prefers a position rather than an answer contradicts itself."""

    model_config = ConfigDict(extra="forbid")

    fields: tuple[str, str]
    labels: dict[str, str] = Field(default_factory=dict)  # what a label means when swapped; the same if not listed
    on_disagreement: Literal["lowest", "mean", "error"] = "lowest"

    def swapped(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values with the two fields exchanged."""
        first, second = self.fields
        return {**values, first: values[second], second: values[first]}


class JudgeConfig(BaseModel):
    """Which model judges, what it is asked, how its answer becomes a score, and how many requests run at once."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model_server: ModelServerRef
    prompt: str
    system: str | None = None
    labels: dict[str, float] = Field(min_length=1)
    pattern: str | None = None
    swap: SwapCheck | None = None
    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    max_concurrent_requests: int = Field(default=16, ge=1)
    max_attempts: int = Field(default=3, ge=1)

    @field_validator("prompt", "system")
    @classmethod
    def _can_be_filled(cls, template: str | None) -> str | None:
        fields_of(template or "")
        return template

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.swap is not None:
            if missing := set(self.swap.fields) - fields_of(self.prompt):
                raise ValueError(f"swap.fields {sorted(missing)} are not in the prompt")
            if unknown := {*self.swap.labels, *self.swap.labels.values()} - set(self.labels):
                raise ValueError(f"swap.labels {sorted(unknown)} are not among the labels")
        return self

    @property
    def fields(self) -> set[str]:
        """The names of all values that the templates need."""
        return fields_of(self.prompt) | fields_of(self.system or "")

    def messages(self, values: Mapping[str, Any]) -> list[dict[str, str]]:
        """The question as a conversation. Values are inserted unchanged."""
        system = [{"role": "system", "content": self.system.format_map(values)}] if self.system is not None else []
        return [*system, {"role": "user", "content": self.prompt.format_map(values)}]

    def label_in(self, text: str) -> str | None:
        """The last label in the text, or None."""
        if self.pattern is not None:
            return self._known([_chosen(match) for match in re.finditer(self.pattern, text)])
        text = _plain_scores(text, self.labels)
        # The longest label first, so that it is not taken for a shorter one inside it.
        names = sorted(self.labels, key=len, reverse=True)
        either = "|".join(f"{_before(name[:1])}{re.escape(name)}{_after(name[-1:])}" for name in names)
        found = [match for match in re.finditer(either, text, re.IGNORECASE) if not _is_article(match)]
        # "Not correct" is neither of the labels "correct" and "incorrect", so the judge is asked again.
        return None if found and _NEGATION.search(text, 0, found[-1].start()) else self._known([m[0] for m in found])

    def _known(self, found: list[str]) -> str | None:
        """The label that was found last, ignoring case."""
        if not found:
            return None
        # Judges often weigh several labels before they decide, so the last one counts.
        last = found[-1].strip()
        if last in self.labels:
            return last
        return next((label for label in self.labels if label.casefold() == last.casefold()), None)


class Verdict(NamedTuple):
    """A judge's decision. If it was asked in both orders and contradicted itself, ``label`` is its first answer."""

    label: str
    score: float
    texts: tuple[str, ...]
    agrees: bool = True


def fields_of(template: str) -> set[str]:
    """The fields that a template names. Raises ``ValueError`` if it can't be filled with plain values."""
    found = [(name, form or "") for _, name, form, _ in Formatter().parse(template) if name is not None]
    names = {name for name, _ in found}
    if odd := [name for name, form in found if not name.isidentifier() or "{" in form]:
        raise ValueError(f"{{{odd[0]}}} is not a field: a field is a name in braces; literal braces are doubled")
    return names


def reconcile_orders(config: JudgeConfig, first: Verdict, second: Verdict) -> Verdict | None:
    """One verdict from those in both orders; None if they contradict each other and that is an error."""
    assert config.swap is not None
    meant = config.swap.labels.get(second.label, second.label)
    texts, scores = (*first.texts, *second.texts), (first.score, config.labels[meant])
    if meant == first.label:
        return first._replace(texts=texts)
    if config.swap.on_disagreement == "error":
        return None
    score = min(scores) if config.swap.on_disagreement == "lowest" else sum(scores) / 2
    return Verdict(first.label, score, texts, agrees=False)


def _chosen(match: re.Match[str]) -> str:
    """The relevant part of a match: the group ``label``, otherwise the first group, otherwise all of it."""
    named = match.groupdict().get("label")
    return named if named is not None else (match[1] if match.re.groups and match[1] is not None else match[0])


_NUMBER: Final = r"\d+(?:[.,]\d+)?"
# A score with its scale: "7/10", "7 of 10", "7 points (out of 10)".
_SCORE: Final = re.compile(
    rf"(?<![\w.,])(?P<score>{_NUMBER})(?:\s*(?:points?|stars?|marks?))?"
    rf"\s*\(?\s*(?:[/\uff0f\u2044\u2215]|\b(?:out\s+)?of\b)\s*(?:(?:the|a|possible|maximum)\s+)*(?P<scale>{_NUMBER})",
    re.IGNORECASE,
)
# Numbers that are not scores: "on a scale of 1 to 10", "6-8", "a 10-point scale", "5 = excellent".
_NO_SCORE: Final = re.compile(
    rf"(?<![\w.,])(?:{_NUMBER}\s*(?:-|\u2013|\bto\b)\s*{_NUMBER}|\d+-(?:point|star)\b|\d+\s*=\s*(?=[^\W\d]))",
    re.IGNORECASE,
)
_FRACTION: Final = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_BOX: Final = re.compile(r"\\(?:boxed|text|mathbf)\{([^{}]*)\}")
_WHOLE: Final = re.compile(r"(?<![\w.,])(\d+)[.,]0+(?![\d.,]*\d)")
_NEGATION: Final = re.compile(
    r"(?:(?:\b(?:not|never|nor)|n['\u2019]t)(?:-|\s+(?:\w+ly\s+|an?\s+|the\s+)?)|\b(?:non|un|in)-)\Z", re.IGNORECASE
)


def _plain_scores(text: str, labels: Mapping[str, float]) -> str:
    """An answer with its scores as plain numbers, and without numbers that are not scores, if labels are numbers."""
    used = set("".join(labels))
    text = "".join(character for character in text if character not in "*`" or character in used)
    if "_" not in used:
        text = re.sub(r"(?<!\w)_+(?=\w)|(?<=[^\W_])_+(?!\w)", "", text)
    numbers = [int(label) for label in labels if label.isdecimal()]
    if not numbers or not used.isdisjoint("/.,-"):
        return text
    text = _BOX.sub(r"\1", _FRACTION.sub(r"\1/\2", text.replace("$", "")))

    def score(match: re.Match[str]) -> str:
        # On a scale that is not that of the labels, a number does not mean what the label means.
        fits = max(numbers) <= float(match["scale"].replace(",", ".")) < 2 * max(numbers)
        return match["score"] if fits else ""

    return _NO_SCORE.sub("", _SCORE.sub(score, _WHOLE.sub(r"\1", text)))


def _is_article(match: re.Match[str]) -> bool:
    """Whether a label of one letter was found where that letter is a word: "a good answer"."""
    return match[0] in ("a", "i") and re.match(r"\s+\w", match.string[match.end() :]) is not None


def _before(character: str) -> str:
    """A pattern for what may come before a label with this first character: not the rest of a word or number."""
    if character.isdigit():
        return r"(?<![\w.,])(?<!\s-)(?<!\A-)"
    return r"\b" if character.isalnum() or character == "_" else ""


def _after(character: str) -> str:
    if character.isdigit():
        return r"(?!\w|[.,]\d)"
    return r"\b" if character.isalnum() or character == "_" else ""


JUDGE_FAILED: Final = FailureClass.JUDGE_FAILED.value
JUDGE_ERROR_KEY: Final = "_ng_failure_judge_error"
RESPONSES_PATH: Final = "/v1/responses"
SHOWN: Final = 300


class JudgeError(RolloutError):
    """There is no verdict. The headers inform every server in between what kind of failure this is."""

    def __init__(self, message: str, *, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.headers = {FAILURE_CLASS_HEADER: JUDGE_FAILED}
        if retry_after:
            self.headers["Retry-After"] = retry_after


def cut_off(response: BaseModel) -> str:
    """Why a response or a chat completion is incomplete; an empty string if it is complete, or something else."""
    if isinstance(response, NeMoGymChatCompletion):
        reasons = [choice.finish_reason for choice in response.choices]
        return next((reason for reason in reasons if reason in ("length", "content_filter")), "")
    if not isinstance(response, NeMoGymResponse):
        return ""
    details = response.incomplete_details
    if details is None and response.status != "incomplete":
        return ""
    return (details.reason if details else None) or "incomplete"


class Judge:
    """One judge, with its own limit on concurrent requests."""

    def __init__(self, config: JudgeConfig, client: GymClient) -> None:
        self.config = config
        self._client = client
        self._slots = asyncio.Semaphore(config.max_concurrent_requests)

    async def ask(self, **values: Any) -> Verdict:
        """The verdict on these values, one for each field of the prompt. Raises ``JudgeError`` if there is none."""
        if missing := self.config.fields - values.keys():
            raise TypeError(f"the judge's prompt needs {', '.join(sorted(missing))}")
        swap = self.config.swap
        if swap is None:
            return await self._decide(values)
        first, second = await every_verdict(self._decide(values), self._decide(swap.swapped(values)))
        verdict = reconcile_orders(self.config, first, second)
        if verdict is None:
            raise self._error(
                f"said {first.label!r}, and {second.label!r} when {' and '.join(swap.fields)} were swapped"
            )
        return verdict

    async def _decide(self, values: dict[str, Any]) -> Verdict:
        request = {**self.config.responses_create_params, "input": self.config.messages(values)}
        text, reason = "", ""
        for _ in range(self.config.max_attempts):
            async with self._slots:  # released between attempts, so that other questions get their turn
                response = await self._answer(request)
            text, reason = response.output_text, cut_off(response)
            # A label in half an answer may be one that the judge was about to reject.
            label = None if reason else self.config.label_in(text)
            if label is not None:
                return Verdict(label, self.config.labels[label], (text,))
        tries = f" ({self.config.max_attempts} attempts)" if self.config.max_attempts > 1 else ""
        known = ", ".join(map(repr, self.config.labels))
        found = f"its answer was cut off ({reason})" if reason else f"its answer contains none of the labels {known}"
        raise self._error(f"{found}{tries}: {text[-SHOWN:]!r}")

    async def _answer(self, request: dict[str, Any]) -> NeMoGymResponse:
        name = self.config.model_server.name
        try:
            reply = await self._client.post(server_name=name, url_path=RESPONSES_PATH, json=request)
            content = await reply.read()
        except request_errors.RequestFailedError as error:
            raise self._error(str(error)) from error
        return _read_answer(name, reply, content, NeMoGymResponse)

    def _error(self, reason: str) -> JudgeError:
        return JudgeError(f"judge {self.config.model_server.name}: {reason}")


Decision = TypeVar("Decision")
Parsed = TypeVar("Parsed", bound=BaseModel)
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


async def every_verdict(*asked: Awaitable[Decision]) -> list[Decision]:
    """Await several questions at once. If some have no verdict, the first of their errors is raised after all ended.

    Questions that were already sent cost money whether or not another one failed, so their usage has to be counted.
    """
    found = await asyncio.gather(*asked, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return cast("list[Decision]", found)


async def call_judge(
    server_client: Any, *, server_name: str, url_path: str, json: Any, response_model: type[Parsed]
) -> Parsed:
    """Ask a judge's model server. Returns its answer as ``response_model``, or raises a ``JudgeError``."""
    try:
        reply = await server_client.post(server_name=server_name, url_path=url_path, json=json)
        content = await reply.read()
    except Exception as error:  # whatever a client or a test double raises, there is no answer
        raise JudgeError(f"judge {server_name}: {type(error).__name__}: {error}") from error
    answer = _read_answer(server_name, reply, content, response_model)
    if reason := cut_off(answer):
        said = answer.output_text if isinstance(answer, NeMoGymResponse) else content.decode(errors="replace")
        raise JudgeError(f"judge {server_name}: its answer was cut off ({reason}): {said[-SHOWN:]!r}")
    return answer


def _read_answer(name: str, reply: Any, content: bytes, response_model: type[Parsed]) -> Parsed:
    """The answer as a model, with its usage counted, because it costs money even if it turns out to be useless."""
    status = getattr(reply, "status", None)  # a test double may have none
    if isinstance(status, int) and status >= 400:
        cause = first_cause(content)[:SHOWN]
        raise JudgeError(f"judge {name}: status {status}: {cause}", retry_after=reply.headers.get("Retry-After"))
    try:
        answer = response_model.model_validate_json(content)
    except ValidationError as error:
        reason = f"{error.error_count()} errors in {response_model.__name__}"
        raise JudgeError(f"judge {name}: {reason}: {content[:SHOWN]!r}") from error
    count_judge(name, getattr(answer, "usage", None))
    return answer


async def reraise_judge_errors(awaitable: Awaitable[Any]) -> Any:
    """Await a call of a judge, and turn every exception into a ``JudgeError``."""
    try:
        return await awaitable
    except JudgeError:
        raise
    except Exception as error:
        raise JudgeError(f"{type(error).__name__}: {error}") from error


def judge_failsafe(verify: Handler) -> Handler:
    """Make a ``verify`` handler report a judge's failure as a failed rollout instead of raising.

    The answer contains the fields of the request and says in ``_ng_failure_class`` that there is no verdict. Its
    ``reward`` of 0 is for clients that require one, and is never counted.
    """

    @functools.wraps(verify)
    async def verify_or_report(*values: Any, **named: Any) -> Any:
        try:
            return await verify(*values, **named)
        except JudgeError as error:
            given = (*values, *named.values())
            body = next((value for value in given if isinstance(value, BaseModel)), None)
            fields = body.model_dump(mode="json") if body is not None else {}
            failure = {"reward": 0.0, NG_FAILURE_CLASS_KEY: JUDGE_FAILED, JUDGE_ERROR_KEY: str(error)}
            return JSONResponse({**fields, **failure, **judge_usage()})

    return cast("Handler", verify_or_report)
