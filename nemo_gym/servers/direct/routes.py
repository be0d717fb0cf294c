"""Decides which handlers can be called directly, and how.

FastAPI has already worked out what a handler takes (body model, ``Request``, ``Response``) and what it returns. A route
that takes nothing else can be called with validated values and without HTTP. Anything else (dependencies, query or path
parameters, mounts, custom response classes) is left to a full ASGI call, so when in doubt a route is not direct.

``UnreadBody`` is a body that a handler passes on: checked, but not turned into objects until its fields are needed. A
handler declares such a body as ``body: ForwardedParams = Body()``; without ``Body()``, FastAPI would take it for a
query parameter. In a direct call, the handler gets the JSON unchanged after a check of its outline, which costs a fifth
of validating it. If the outline leaves any doubt, and in every call that goes through FastAPI, the pydantic ``model``
decides; it also provides the schema of the route.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import msgspec
from fastapi import FastAPI
from fastapi.datastructures import DefaultPlaceholder
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import ResponseValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema
from starlette.routing import BaseRoute, Match, Route

from nemo_gym.io.json import decode_exactly, encode_json


class UnreadBody:
    """A JSON object, as text, as fields, or both."""

    __slots__ = ("_fields", "_text", "outline")

    model: ClassVar[type[BaseModel]]
    # Reads the outline of the text. It must refuse whatever the model might refuse.
    decoder: ClassVar[msgspec.json.Decoder[Any]]

    def __init__(self, text: bytes | None = None, outline: Any = None, fields: dict[str, Any] | None = None) -> None:
        self._text = text
        self._fields = fields
        self.outline = outline  # what the decoder saw; None if the model decided

    @classmethod
    def read(cls, text: bytes) -> Self:
        """The body of a direct call; a ValueError means that the model has to decide."""
        try:
            if not text.isascii():
                str(text, "utf-8")  # the decoder does not check strings that it skips
            return cls(text, cls.decoder.decode(text))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from None

    @property
    def text(self) -> bytes:
        if self._text is None:
            self._text = encode_json(self._fields)
        return self._text

    @property
    def fields(self) -> dict[str, Any]:
        """The object; the same one every time."""
        if self._fields is None:
            self._fields = decode_exactly(self.text)
        return self._fields

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def of_model(model: BaseModel) -> "UnreadBody":
            return cls(fields={**model.__dict__, **(model.__pydantic_extra__ or {})})

        return core_schema.no_info_after_validator_function(of_model, handler.generate_schema(cls.model))


class JsonObject(dict[str, Any]):
    """A JSON object. A handler that declares such a class and returns one has it sent as it is."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, handler.generate_schema(dict[str, Any]))


# Types that pydantic validates alike in JSON and in Python mode. Others (dates, UUIDs, enums, strict fields, …) may
# resolve a union differently or accept less, so they are validated as FastAPI does it: parse first, then validate.
PLAIN_SCHEMAS = frozenset(
    {"any", "none", "bool", "int", "float", "str", "list", "dict", "literal", "nullable", "default"}
    | {"model", "model-fields", "model-field", "typed-dict", "typed-dict-field", "definitions", "definition-ref"}
    | {"union", "tagged-union", "function-before", "function-after", "function-wrap"}
)


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """A handler with the names of its parameters and the functions that read its body and write its result."""

    handler: Callable[..., Any]
    is_async: bool
    status: int
    body_name: str | None
    read_body: Callable[[bytes], Any]
    request_name: str | None
    response_name: str | None
    write_body: Callable[[Any], bytes]


RouteTable = dict[tuple[str, str], DirectRoute]


def direct_routes(app: FastAPI) -> RouteTable:
    """The routes of an app that can be called directly, by method and path."""
    table: RouteTable = {}
    for position, route in enumerate(app.routes):
        if not isinstance(route, APIRoute) or not _is_plain(app, route):
            continue
        direct = None
        for method in route.methods or ():
            if not _is_shadowed(app.routes[:position], method, route.path):
                direct = direct or _direct_route(route)
                table.setdefault((method, route.path), direct)
    return table


def _is_plain(app: FastAPI, route: APIRoute) -> bool:
    """Whether the handler takes nothing but the body, the request and the response."""
    wants = route.dependant
    return not (
        wants.path_params
        or wants.query_params
        or wants.header_params
        or wants.cookie_params
        or wants.dependencies
        or wants.http_connection_param_name
        or wants.websocket_param_name
        or wants.background_tasks_param_name
        or wants.security_scopes_param_name
        or app.dependency_overrides
        or "{" in route.path
        or len(wants.body_params) > 1
        or not _is_whole_body(route)
        or not _has_default_response(route)
    )


def _is_whole_body(route: APIRoute) -> bool:
    """Whether the one body parameter is the whole JSON document, and is required."""
    if not route.dependant.body_params:
        return True
    info = route.dependant.body_params[0].field_info
    is_json = getattr(info, "media_type", None) == "application/json"
    return is_json and info.is_required() and not getattr(info, "embed", None)


def _has_default_response(route: APIRoute) -> bool:
    return (
        isinstance(route.response_class, DefaultPlaceholder)
        and route.response_model_include is None
        and route.response_model_exclude is None
        and route.response_model_by_alias
        and not route.response_model_exclude_unset
        and not route.response_model_exclude_defaults
        and not route.response_model_exclude_none
        and not inspect.isgeneratorfunction(route.endpoint)
        and not inspect.isasyncgenfunction(route.endpoint)
    )


def _is_shadowed(earlier: list[BaseRoute], method: str, path: str) -> bool:
    """Whether a route registered earlier serves this path."""
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    return any(_matches(route, method, path, scope) for route in earlier)


def _matches(route: BaseRoute, method: str, path: str, scope: dict[str, Any]) -> bool:
    if isinstance(route, Route):  # cheaper than `matches`, which also builds a child scope
        return route.path_regex.match(path) is not None and method in (route.methods or {method})
    return route.matches(dict(scope))[0] is Match.FULL


def _direct_route(route: APIRoute) -> DirectRoute:
    wants = route.dependant
    body = wants.body_params[0] if wants.body_params else None
    return DirectRoute(
        handler=route.endpoint,
        is_async=_is_async(route.endpoint),
        status=route.status_code or 200,
        body_name=body.name if body else None,
        read_body=_body_reader(body.field_info.annotation) if body else bytes,
        request_name=wants.request_param_name,
        response_name=wants.response_param_name,
        write_body=body_writer(route.response_model),
    )


def _is_async(handler: Callable[..., Any]) -> bool:
    while isinstance(handler, partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _body_reader(annotation: Any) -> Callable[[bytes], Any]:
    if isinstance(annotation, type) and issubclass(annotation, UnreadBody):
        return annotation.read
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    # pydantic reads a model faster than parsing and validating it one after the other. Into dictionaries, which are
    # mostly passed on, it parses half as fast as others.
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if is_model and all(kind in PLAIN_SCHEMAS for kind in _schema_kinds(adapter.core_schema)):
        return adapter.validator.validate_json

    def parse_then_validate(body: bytes) -> Any:
        return adapter.validator.validate_python(decode_exactly(body))

    return parse_then_validate


def _schema_kinds(schema: Any) -> Iterator[str]:
    """Every kind of schema inside a core schema; strict schemas count as a separate kind."""
    if isinstance(schema, dict):
        kind = schema.get("type")
        if isinstance(kind, str):
            yield "strict" if schema.get("strict") or (schema.get("config") or {}).get("strict") else kind
        for key, value in schema.items():
            if key not in ("metadata", "serialization", "config", "default", "expected", "cls", "function", "ref"):
                yield from _schema_kinds(value)
    elif isinstance(schema, list | tuple):
        for item in schema:
            yield from _schema_kinds(item)


def body_writer(model: Any) -> Callable[[Any], bytes]:
    """Encodes a returned value as FastAPI does: through the declared type if there is one, otherwise as it is."""
    if model is None:
        return lambda content: bytes(JSONResponse(jsonable_encoder(content)).body)
    adapter: TypeAdapter[Any] = TypeAdapter(model)
    validate, dump = adapter.validator.validate_python, partial(adapter.serializer.to_json, by_alias=True)
    write_declared = encode_json if isinstance(model, type) and issubclass(model, JsonObject) else dump

    def write(content: Any) -> bytes:
        if type(content) is model:  # pydantic does not validate an instance of the declared class again
            return write_declared(content)
        try:
            value = validate(content, from_attributes=True)
        except ValidationError as error:
            errors = [{**entry, "loc": ("response", *entry["loc"])} for entry in error.errors(include_url=False)]
            raise ResponseValidationError(errors=errors, body=content) from None
        return dump(value)

    return write
