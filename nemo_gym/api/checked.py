"""Options given in Python: validated by the class that also describes the parameters of the command."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nemo_gym.errors import ConfigError, nearest

Options = TypeVar("Options", bound=BaseModel)


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
