"""What a command line or a program sets, as plain nested data.

A pair of a dotted key and a value needs no grammar: the value is taken as it is. Overrides are text in Hydra's grammar,
read by Hydra's parser: ``+key=value`` adds, ``++key=value`` adds or replaces, and ``key=value`` replaces what was given
before. They see the pairs and the overrides before them; the files are merged in below later. Nothing is written to
disk.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from nemo_gym.config.keys import CONFIG_PATHS, DELETE_KEY
from nemo_gym.config.secrets import is_secret_key
from nemo_gym.errors import MalformedConfigPathsError, UsageError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_GRAMMAR: Final = "write '+key=value' to add a key or '++key=value' to add or replace it"


def parse_overrides(arguments: Iterable[str], pairs: Mapping[str, Any] | None = None) -> dict[Any, Any]:
    """The configuration that the pairs and then the arguments describe. An error names the argument that is wrong."""
    data: dict[Any, Any] = {}
    for key, value in (pairs or {}).items():
        _set(data, key, deepcopy(value))  # overrides may add to it
    given = list(arguments)
    for argument, override in zip(given, _parse(given), strict=True):
        # Hydra's own settings (output folders, logging) have no meaning here; scripts may still pass them.
        if override.key_or_group.startswith(("hydra.", "hydra/")):
            continue
        _check(override, argument)
        _apply(data, override, _value(override, argument))
    return data


def _parse(arguments: list[str]) -> list["Override"]:
    if not arguments:
        return []
    # Importing Hydra is expensive, and most processes of a run have no command line.
    from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: PLC0415
    from hydra.errors import HydraException  # noqa: PLC0415

    parser = OverridesParser.create()
    parsed = []
    for index, argument in enumerate(arguments):
        try:
            parsed.append(parser.parse_override(argument))
        except HydraException:
            raise _syntax_error(argument, arguments[index - 1] if index else "") from None
        except (RecursionError, ValueError):  # Python refuses to convert numbers of more than 4,300 digits
            raise UsageError(
                f"command line: the value of '{_shown(argument)}' is nested too deeply or too long a number",
                hint="text that looks like a number needs quotes inside the argument: '+key=\"1234\"'",
            ) from None
    return parsed


def _check(override: "Override", argument: str) -> None:
    key = override.key_or_group
    if not key or "/" in key or override.package is not None:
        raise UsageError(f"command line: '{_shown(argument)}' does not set a dotted key like 'a.b.c'", hint=_GRAMMAR)
    if override.is_delete():
        raise UsageError(
            f"command line: '~{key}' can't remove a key, because files are read after the command line",
            hint=f"to remove a key that a file sets, use '{_delete_override(key)}'",
        )


def _value(override: "Override", argument: str) -> Any:
    if not override.is_sweep_override():
        return override.value()
    key = override.key_or_group
    kind = MalformedConfigPathsError if key == CONFIG_PATHS else UsageError
    raise kind(
        f"command line: '{_shown(argument)}' gives '{key}' several values",
        hint=f"a list needs brackets, '+{key}=[a,b]'; text with commas needs quotes, '+{key}=\"a,b\"'",
    )


def _apply(data: dict[Any, Any], override: "Override", value: Any) -> None:
    key = override.key_or_group
    exists = _exists(data, key.split("."))
    # Hydra lets two mappings under the same key add up.
    if override.is_add() and exists and not (isinstance(value, dict) and isinstance(_get(data, key), dict)):
        raise UsageError(
            f"command line: '{key}' is given more than once", hint=f"use '++{key}=<value>' to replace the earlier one"
        )
    if not (override.is_add() or override.is_force_add() or exists):
        raise UsageError(
            f"command line: '{key}=<value>' has nothing to override", hint=f"to set it, use '+{key}=<value>'"
        )
    _set(data, key, value)


def _set(data: dict[Any, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        if not isinstance(data.get(parent), dict):
            data[parent] = {}
        data = data[parent]
    data[last] = _merged(data[last], value) if isinstance(data.get(last), dict) else value


def _merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: _merged(old.get(key), value) for key, value in new.items()}


def _exists(data: Any, path: list[str]) -> bool:
    """Whether the key is already set, or one of its parents is set to a plain value."""
    for segment in path:
        if not isinstance(data, dict):
            return True
        if segment not in data:
            return False
        data = data[segment]
    return True


def _get(data: Any, key: str) -> Any:
    for segment in key.split("."):
        data = data.get(segment) if isinstance(data, dict) else None
    return data


def _delete_override(key: str) -> str:
    parent, _, last = key.rpartition(".")
    return f"++{parent}.{DELETE_KEY}={last}" if parent else f"++{DELETE_KEY}={last}"


def _shown(argument: str) -> str:
    key, equals, _ = argument.partition("=")
    return f"{key}=..." if equals else key


def _syntax_error(argument: str, previous: str) -> UsageError:
    """Names the argument, but never its value or the rest of a value that the shell split off: both may be secrets."""
    key, equals, _ = argument.partition("=")
    hidden = not equals and is_secret_key(previous.partition("=")[0])
    balanced = argument.count("[") == argument.count("]") and argument.count("{") == argument.count("}")
    if equals and balanced:
        hint = f"quote a value with special characters: '{key}=\"<value>\"'"
    elif equals or not balanced:
        hint = "quote the whole argument, so that the shell keeps it together: '+config_paths=[a.yaml,b.yaml]'"
    else:
        hint = _GRAMMAR
    shown = "(hidden: it follows a secret)" if hidden else _shown(argument)
    return UsageError(f"command line: can't read '{shown}'", hint=hint)
