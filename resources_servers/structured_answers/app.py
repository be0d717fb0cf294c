"""Answers in JSON, YAML, XML, CSV or TOML: valid by a schema, right by field."""

import asyncio
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

import orjson
from pydantic import BaseModel, Field, PrivateAttr, model_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
    refuse_invalid_rows,
)
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall, answer_text
from nemo_gym.reward_profile import compute_subset_metrics
from resources_servers.structured_answers.documents import DocumentError, Format, parse, without_fence
from resources_servers.structured_answers.fields import fields_of, wrong_fields
from resources_servers.structured_answers.schemas import (
    CompiledSchema,
    compile_schema,
    document_value,
    typed,
)

# Longer answers are read in a thread, so that other rollouts do not wait.
SHORT: Final = 2_000


class StructuredAnswersConfig(BaseResourcesServerConfig):
    """What counts as valid, and what as right.

    ``grading``: reward only an answer in which ``all`` fields are right, or the ``fraction`` that is.
    ``strict_schema``: all properties are required and no others allowed, whatever the schema says, unless the row
    says otherwise.
    """

    grading: Literal["all", "fraction"] = "all"
    strict_schema: bool = True
    accept_code_fence: bool = False
    xml_coerce_types: bool = True


class StructuredAnswersTask(BaseModel):
    """The fields of a row that say what is expected."""

    schema_str: str
    schema_type: Format = "json"
    response_mode: Literal["text", "tool_call"] = "text"
    tool_name: str | None = None
    tool_payload_key: str | None = None
    strict_schema: bool | None = None
    expected: Any = None

    @model_validator(mode="after")
    def _has_a_schema(self) -> Self:
        try:
            compile_schema(self.schema_str, strict=False)
        except ValueError as error:
            raise ValueError(f"schema_str is not a JSON schema: {str(error)[:300]}") from None
        return self


class StructuredAnswersVerifyRequest(StructuredAnswersTask, BaseVerifyRequest):
    """A row with the agent's response."""

    id: str | int | None = None
    question: str | None = None
    difficulty: int | None = None


class StructuredAnswersVerifyResponse(StructuredAnswersVerifyRequest, BaseVerifyResponse):
    """The row with its reward and the reasons for it."""

    accuracy: float
    valid: bool
    fraction_right: float
    error_type: str | None
    error_message: str | None
    wrong_fields: list[str]


class Payload(NamedTuple):
    """What the model sent as its answer, or why there is none."""

    text: str = ""
    error_type: str | None = None
    error_message: str | None = None


class Grade(BaseModel):
    """The result of reading, validating and comparing an answer."""

    valid: bool = False
    fraction_right: float = 0.0
    error_type: str | None = None
    error_message: str | None = None
    wrong_fields: list[str] = Field(default_factory=list)


class StructuredAnswersServer(SimpleResourcesServer):
    """Reads, validates and compares."""

    config: StructuredAnswersConfig
    _threads: asyncio.Semaphore = PrivateAttr(default_factory=lambda: asyncio.Semaphore(4))

    seed_session: ClassVar[Any] = refuse_invalid_rows(StructuredAnswersTask)

    def model_post_init(self, context: Any, /) -> None:
        """Compile any schema, so that a missing validator is reported at the start and not in the middle of a run."""
        super().model_post_init(context)
        compile_schema("{}", strict=False)

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: StructuredAnswersVerifyRequest
    ) -> StructuredAnswersVerifyResponse:
        """Find the answer, read it, and compare it with the schema and the expected values."""
        payload = answer_in(body, self.config)
        if len(payload.text) <= SHORT:
            grade = self._grade(body, payload)
        else:
            async with self._threads:
                grade = await asyncio.to_thread(self._grade, body, payload)
        accuracy = float(grade.valid and not grade.wrong_fields)
        reward = accuracy if self.config.grading == "all" else grade.fraction_right
        return StructuredAnswersVerifyResponse(**dict(body), **dict(grade), reward=reward, accuracy=accuracy)

    def _grade(self, task: StructuredAnswersTask, payload: Payload) -> Grade:
        if payload.error_type:
            return Grade(error_type=payload.error_type, error_message=payload.error_message)
        strict = self.config.strict_schema if task.strict_schema is None else task.strict_schema
        compiled = compile_schema(task.schema_str, strict=strict)
        try:
            value = self._value(payload.text, task, compiled)
        except DocumentError as error:
            return Grade(error_type="parse_error", error_message=str(error))
        if problem := compiled.error(value):
            return Grade(error_type="validation_error", error_message=problem)
        fields = list(fields_of(task.expected)) if task.expected is not None else []
        wrong = wrong_fields(value, fields)
        return Grade(valid=True, fraction_right=1 - len(wrong) / len(fields) if fields else 1.0, wrong_fields=wrong)

    def _value(self, text: str, task: StructuredAnswersTask, compiled: CompiledSchema) -> Any:
        kind = "json" if task.response_mode == "tool_call" else task.schema_type
        value = document_value(parse(text, kind), compiled.schema, kind)
        if kind == "csv" or (kind == "xml" and self.config.xml_coerce_types):
            return typed(value, compiled.schema, compiled.schema)
        return value

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Add pass@k by format."""
        return compute_subset_metrics(tasks, "schema_type")


def answer_in(task: StructuredAnswersVerifyRequest, config: StructuredAnswersConfig) -> Payload:
    """The text of the document: what the model said, or the arguments of its one tool call."""
    if task.response_mode == "tool_call":
        return _arguments(task.response, task)
    text = answer_text(task.response, reasoning_tags=config.reasoning_tags)
    if not text.strip():
        return Payload(error_type="empty_response", error_message="the model said nothing")
    return Payload(without_fence(text) if config.accept_code_fence else text)


def _arguments(response: NeMoGymResponse, task: StructuredAnswersTask) -> Payload:
    calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
    if not calls:
        return Payload(error_type="missing_tool_call", error_message="no tool was called")
    if len(calls) > 1:
        return Payload(error_type="multiple_tool_calls", error_message=f"{len(calls)} tools were called")
    (call,) = calls
    if task.tool_name is not None and call.name != task.tool_name:
        return Payload(error_type="wrong_tool_name", error_message=f"called {call.name[:100]!r}")
    return _payload_of(call.arguments, task.tool_payload_key)


def _payload_of(arguments: str, key: str | None) -> Payload:
    try:
        value = parse(arguments, "json")
    except DocumentError as error:
        return Payload(error_type="tool_arguments_parse_error", error_message=str(error))
    if key is None:
        return Payload(arguments)
    if not isinstance(value, dict) or key not in value:
        return Payload(error_type="missing_tool_payload_key", error_message=f"no {key!r}")
    return Payload(orjson.dumps(value[key]).decode())


if __name__ == "__main__":
    StructuredAnswersServer.run_webserver()
