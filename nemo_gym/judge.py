"""Front door: model judges, for verifiers that can't decide by themselves.

    self._judge = Judge(self.config.judge, self.server_client)
    verdict = await self._judge.ask(question=…, expected=…, answer=…)

A ``JudgeConfig`` says what the judge's prompt is and how its answer becomes a score; a ``Judge`` asks. A verifier that
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

from nemo_gym.conversion.parts import without_reasoning
from nemo_gym.errors import RolloutError
from nemo_gym.schemas.chat import NeMoGymChatCompletion
from nemo_gym.schemas.episodes import REASON_CHARS
from nemo_gym.schemas.refs import ModelServerRef
from nemo_gym.schemas.responses import NeMoGymResponse
from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER, MASK_KEY_NAME, NG_FAILURE_CLASS_KEY, FailureClass
from nemo_gym.servers.http.connections import request_errors
from nemo_gym.servers.judging import (
    FENCE,
    are_marked,
    fence_for,
    field_label,
    first_label,
    is_object,
    is_only_value,
    last_label,
    placed_label,
    verdict_form,
    without_labels,
    without_quotes,
    without_word,
)
from nemo_gym.servers.middleware.faults import first_cause
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
    """Which model judges, with which prompt, how its answer becomes a score, and how many requests run at once."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model_server: ModelServerRef
    prompt: str
    system: str | None = None
    labels: dict[str, float] = Field(min_length=1)
    pattern: str | None = None
    structured: bool = False  # the endpoint writes JSON by a schema, so the verdict has a field of its own
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
        """The names of all values that the templates need from the verifier."""
        return (fields_of(self.prompt) | fields_of(self.system or "")) - {FENCE}

    def messages(self, values: Mapping[str, Any]) -> list[dict[str, str]]:
        """The question as a conversation. Labels in brackets lose them in values, which are not templates."""
        values = {FENCE: fence_for(values), **self.quoted(values)}
        system = [{"role": "system", "content": self.system.format_map(values)}] if self.system is not None else []
        return [*system, {"role": "user", "content": self.prompt.format_map(values)}]

    def quoted(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values without labels, so that a judge who quotes them says none."""
        return {
            name: without_labels(value, self.labels) if isinstance(value, str) else value
            for name, value in values.items()
        }

    def label_in(self, text: str) -> str | None:
        """The label that a reply decides for: in brackets the one at its edge, otherwise the last one; or None."""
        if self.structured and is_object(text):
            return field_label(text, self.labels)
        if self.pattern is not None:
            return self._known([_chosen(match) for match in re.finditer(self.pattern, text)])
        if are_marked(self.labels):
            return placed_label(text, self.labels)
        last, first = last_label(text, self.labels), first_label(text, self.labels)
        # A judge that says its verdict first and then quotes an answer may end with a label of the answer.
        if last is None or (first is not None and first.casefold() != last.casefold()):
            return None
        return self._known([last])

    def verdict_on(self, values: Mapping[str, Any], text: str) -> tuple[str | None, bool]:
        """The label of a reply about these values, and whether one of them tried to speak for the judge."""
        said = self.label_in(text)
        marked = self.quoted(values) != values
        if marked or are_marked(self.labels) or (self.structured and is_object(text)):
            return said, marked
        label = self.label_in(without_quotes(text, values, self.labels))
        if label is not None and is_only_value(label, values) and self.label_in(without_word(text, label)):
            label = None  # the judge may have named the answer after its verdict
        if label is None and said is not None and self.labels[said] == min(self.labels.values()):
            return said, False  # nobody gains by having suggested the lowest
        return label, label != said

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
    """A judge's decision. If it judged both orders and contradicted itself, ``label`` is its first answer.

    ``injection`` is true if a value contained a label in brackets, or another one that would have been taken for the
    verdict when the judge quoted it, as an answer does that tries to speak for the judge.
    """

    label: str
    score: float
    texts: tuple[str, ...]
    agrees: bool = True
    injection: bool = False


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
    return first._replace(score=score, texts=texts, agrees=False)


def _chosen(match: re.Match[str]) -> str:
    """The relevant part of a match: the group ``label``, otherwise the first group, otherwise all of it."""
    named = match.groupdict().get("label")
    return named if named is not None else (match[1] if match.re.groups and match[1] is not None else match[0])


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
        form = {"text": verdict_form(self.config.labels)} if self.config.structured else {}
        request = {**form, **self.config.responses_create_params, "input": self.config.messages(values)}
        text, reason = "", ""
        for _ in range(self.config.max_attempts):
            async with self._slots:  # released between attempts, so that other questions get their turn
                response = await self._answer(request)
            text, reason = without_reasoning(response.output_text), cut_off(response)
            # A label in half an answer may be one that the judge was about to reject.
            label, injection = (None, False) if reason else self.config.verdict_on(values, text)
            if label is not None:
                return Verdict(label, self.config.labels[label], (text,), injection=injection)
        tries = f" ({self.config.max_attempts} attempts)" if self.config.max_attempts > 1 else ""
        known = ", ".join(map(repr, self.config.labels))
        found = f"its answer was cut off ({reason})" if reason else f"its answer decides for none of the labels {known}"
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


async def every_verdict(*judged: Awaitable[Decision]) -> list[Decision]:
    """Await several questions at once. If some have no verdict, the first of their errors is raised after all ended.

    Questions that were already sent cost money whether or not another one failed, so their usage has to be counted.
    """
    found = await asyncio.gather(*judged, return_exceptions=True)
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
    except Exception as error:  # whatever a client or a test double raises, there is no reply
        raise JudgeError(f"judge {server_name}: {type(error).__name__}: {error}") from error
    answer = _read_answer(server_name, reply, content, response_model)
    if reason := cut_off(answer):
        text = answer.output_text if isinstance(answer, NeMoGymResponse) else content.decode(errors="replace")
        raise JudgeError(f"judge {server_name}: its answer was cut off ({reason}): {text[-SHOWN:]!r}")
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


def _failed_verdict(reason: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What says that there is no verdict: to a collector that it is a failure, to all others that it is masked."""
    failure = {"reward": 0.0, NG_FAILURE_CLASS_KEY: JUDGE_FAILED, JUDGE_ERROR_KEY: reason}
    given = fields.get("instance_config")
    instance = {"instance_config": {**given, MASK_KEY_NAME: True}} if isinstance(given, Mapping) else {}
    masked = {MASK_KEY_NAME: True, "failure_kind": JUDGE_FAILED, "failure_reason": reason[:REASON_CHARS]}
    return {**failure, **masked, **instance}


def judge_failsafe(verify: Handler) -> Handler:
    """Make a ``verify`` handler report a judge's failure as a failed rollout instead of raising.

    The reply contains the fields of the request and says in ``_ng_failure_class`` that there is no verdict. Its
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
            return JSONResponse({**fields, **_failed_verdict(str(error), fields), **judge_usage()})

    return cast("Handler", verify_or_report)
