"""Verify as authors write it: which signatures there are, and what such a function may return.

The interface's ``verify(self, body: MyRequest)`` is an ordinary FastAPI handler and stays one. Besides it,
``verify(task, response)`` and ``verify(task, response, state)`` are understood, as methods and as plain functions, sync
or async: ``task`` is the row without the request and the response, ``response`` an ``AgentResponse``. They return the
reward, or a dictionary with the reward and further fields. Any other signature is refused when the server is built,
because it would fail only after the model calls of a rollout are paid for. Parameters that are called ``task``,
``response`` or ``state`` get what they are called after, wherever they stand; others get the rest in that order.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, get_type_hints

from fastapi import Request
from pydantic import BaseModel

from nemo_gym.conversion.work import AgentResponse
from nemo_gym.errors import ConfigError
from nemo_gym.schemas.record import is_metric_name
from nemo_gym.schemas.rows import RESPONSE_KEY_NAME

Row = dict[str, Any]
_IN_THREADS: Final[ContextVar[bool]] = ContextVar("in_threads", default=True)
StateOf = Callable[[Request], Any]

_FORMS: Final = "(task, response) or (task, response, state)"
_GIVEN: Final = ("task", "response", "state")
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def task_of(row: Mapping[str, Any]) -> Row:
    """The task of a row as its author wrote it: every field that is neither the request, the response nor ours."""
    return {name: value for name, value in row.items() if is_metric_name(name)}


def verify_handler(
    verify: Callable[..., Any], *, owner: str, body: type[BaseModel] | None, state_of: StateOf | None = None
) -> Callable[..., Any]:
    """The route for a verify function: the function itself if it is a handler, otherwise an adapter for it.

    ``owner`` is named in errors, ``body`` is what a function with one parameter of unknown type gets, if it may have
    one, and ``state_of`` finds the state of a rollout for functions that take it.
    """
    parameters = list(inspect.signature(verify).parameters.values())
    if _is_handler(verify, parameters):
        return verify
    needed = [each for each in parameters if _is_needed(each, has_state=state_of is not None)]
    places = _places(needed)
    if body is not None and not places and len(parameters) == len(needed) == 1 and needed[0].kind in _POSITIONAL:
        return _with_body(verify, body)
    if not places:
        raise ConfigError(
            f"{owner}: verify{inspect.signature(verify)} can't be called",
            hint=f"write it with the parameters {_FORMS}, or as a handler with one annotated body: "
            "async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse",
        )
    if "state" in places.values() and state_of is None:
        raise ConfigError(
            f"{owner}: verify{inspect.signature(verify)} takes a state, but nothing makes one",
            hint="add a setup function that returns the state of a rollout, or write verify(task, response)",
        )
    unnamed = {each.name for each in needed if each.kind is each.POSITIONAL_ONLY}

    async def verify_task(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {"task": task_of(body), "response": AgentResponse(body[RESPONSE_KEY_NAME])}
        if "state" in places.values() and state_of is not None:
            values["state"] = state_of(request)
        given = {name: values[place] for name, place in places.items()}
        in_order = [given.pop(name) for name in places if name in unnamed]
        return {**body, **verdict_of(await call_author(verify, *in_order, **given))}

    return verify_task


def _is_needed(parameter: inspect.Parameter, *, has_state: bool) -> bool:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    is_given = parameter.name in _GIVEN and (parameter.name != "state" or has_state)
    return is_given or parameter.default is parameter.empty


def _places(needed: Sequence[inspect.Parameter]) -> dict[str, str]:
    """What each parameter gets: what it is called after, and the others in order; empty if that can't be told."""
    places = {each.name: each.name for each in needed if each.name in _GIVEN}
    others = [each for each in needed if each.name not in _GIVEN]
    left = [name for name in _GIVEN if name not in places]
    if len(others) > len(left) or any(each.kind is each.KEYWORD_ONLY for each in others):
        return {}
    places |= {each.name: name for each, name in zip(others, left, strict=False)}
    known = {"task", "response"} & {*places.values()}
    return places if len(known) == 2 or (known and not others) else {}


def _with_body(verify: Callable[..., Any], kind: type[BaseModel]) -> Callable[..., Any]:
    async def verify_body(body: BaseModel) -> Any:
        return await call_author(verify, body)

    verify_body.__annotations__["body"] = kind  # the route takes the type of its body from here
    return verify_body


def _is_handler(verify: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    """Whether FastAPI knows what to pass: some parameter is annotated with a model or the request."""
    while isinstance(verify, partial):
        verify = verify.func
    try:
        hints = get_type_hints(verify if inspect.isroutine(verify) else type(verify).__call__)
    except (NameError, TypeError):  # names that only the author's module knows; FastAPI reports what it can't resolve
        return True
    kinds = [hints.get(each.name) for each in parameters]
    return any(isinstance(kind, type) and issubclass(kind, BaseModel | Request) for kind in kinds)


@contextmanager
def without_threads() -> Iterator[None]:
    """Run authors' functions where they are awaited: a signal can interrupt them there, and nowhere else."""
    token = _IN_THREADS.set(False)
    try:
        yield
    finally:
        _IN_THREADS.reset(token)


async def call_author(function: Callable[..., Any], *values: Any, **named: Any) -> Any:
    """Call a function of an environment's author: a coroutine function here, any other in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*values, **named)
    if not _IN_THREADS.get():
        result = function(*values, **named)
        return await result if isinstance(result, Awaitable) else result
    result = await asyncio.to_thread(function, *values, **named)
    return await result if isinstance(result, Awaitable) else result


def verdict_of(returned: Any) -> Row:
    """The fields of a verdict, given what a verify function returned."""
    fields = returned.model_dump(mode="json") if isinstance(returned, BaseModel) else _plain(returned)
    if isinstance(fields, bool | int | float):
        fields = {"reward": fields}
    if isinstance(fields, Mapping):
        fields = {name: _plain(value) for name, value in fields.items()}
    if not isinstance(fields, dict) or not isinstance(fields.get("reward"), bool | int | float):
        shown = f"a dictionary with {sorted(map(str, fields))}" if isinstance(fields, dict) else repr(returned)
        raise TypeError(f"verify returned {shown:.200}; expected a number, or a dictionary with a number as 'reward'")
    reward = float(fields["reward"])
    if not math.isfinite(reward):
        raise ValueError(f"verify returned the reward {reward}, which can't be averaged or trained on")
    return {**fields, "reward": reward}


def _plain(value: Any) -> Any:
    """A number of numpy or torch as one of Python's own; anything else as it is."""
    item = getattr(value, "item", None)
    return item() if callable(item) else value
