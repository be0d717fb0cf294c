"""Options, checked before anything is called: by the class that also describes the parameters of the command.

Errors deep inside say what to do in the words of the command line; a Python function passes them on in its own.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from nemo_gym.errors import ConfigError, UsageError, nearest
from nemo_gym.schemas.responses import NeMoGymResponseCreateParamsNonStreaming

Options = TypeVar("Options", bound=BaseModel)

# What functions call by a shorter name than commands do. Both names are understood.
SHORT_NAMES: Final = {
    "agent_name": "agent",
    "input_jsonl_fpath": "tasks",
    "num_repeats": "repeats",
    "output_jsonl_fpath": "output",
    "resume_from_cache": "resume",
}
_TYPED: Final = re.compile(
    r"(?<![\w+])'?\+([a-z_]+)(?![\w.])(?:=(\[[^]]*\]|[^\s,;)'<{]+))?'?|\b(" + "|".join(SHORT_NAMES) + r")\b"
)
_LITERALS: Final = {"true": "True", "false": "False", "null": "None"}


def checked_options(described: type[Options], given: Mapping[str, Any]) -> Options:
    """The options as an object; one error lists all mistakes, with the nearest name for one that does not exist."""
    unknown = [name for name in given if name not in described.model_fields]
    lines = [f"{name}: there is no such option{_suggested(name, described)}" for name in unknown]
    known = {name: value for name, value in given.items() if name not in unknown}
    try:
        if not lines:
            return described.model_validate(known)
        described.model_validate(known)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        lines += [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in details]
    raise ConfigError("these options are not valid:\n  " + "\n  ".join(lines))


def _suggested(name: str, described: type[BaseModel]) -> str:
    near = nearest(name, described.model_fields)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_request_parameters(given: Mapping[str, Any], *, prefix: str = "") -> None:
    """Refuse request parameters that no model server would accept, before any of them is called."""
    try:
        NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": "", **given})
    except ValidationError as error:
        known = NeMoGymResponseCreateParamsNonStreaming.model_fields
        lines = []
        for detail in error.errors(include_url=False, include_input=False):
            name = ".".join(map(str, detail["loc"]))
            near = nearest(name, known) if detail["type"] == "extra_forbidden" else []
            advice = f"; did you mean {near[0]!r}?" if near else ""
            lines.append(f"  {prefix}{name}: {detail['msg']}{advice}")
        raise UsageError(
            "these parameters of the model request are not valid:\n" + "\n".join(lines),
            hint="parameters of an endpoint beyond the Responses API go into the model server's extra_body",
        ) from None


# ---- words of the command line ---------------------------------------------------------------------------------------
@contextmanager
def in_python() -> Iterator[None]:
    """Errors from inside say what to pass to a function, not what to type."""
    try:
        yield
    except ConfigError as error:
        if error.hint:
            error.reword(as_arguments(error.hint))
        raise


def as_arguments(text: str) -> str:
    """A text with what people would type, ``+resume_from_cache=true``, as arguments of a function: ``resume=True``."""
    return _TYPED.sub(_argument, text)


def _argument(typed: re.Match[str]) -> str:
    name = typed[1] or typed[3]
    name = SHORT_NAMES.get(name, name)
    return name if typed[2] is None else f"{name}={_value(typed[2])}"


def _value(typed: str) -> str:
    if typed.startswith("["):
        return repr([each.strip() for each in typed[1:-1].split(",")])
    is_number = typed.replace(".", "", 1).isdigit()
    return _LITERALS.get(typed) or (typed if is_number or typed == "…" else repr(typed))
