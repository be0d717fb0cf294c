"""Flags: a second way to type a parameter, ``--limit 5`` for ``+limit=5``.

A flag is nothing but a spelling. :func:`to_overrides` turns the flags of a command into the overrides that the
configuration layer reads and leaves everything else as it is. Flags that name configuration files are collected into
one ``+config_paths=[…]``.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nemo_gym.cli import selectors
from nemo_gym.cli.outcome import UsageError
from nemo_gym.config.suggest import did_you_mean

# What the override grammar reads as text without quotes, and what of that it would read as a number or a constant.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]+")
_LITERAL: Final = re.compile(r"[-+]?[\d._]+(e[-+]?\d+)?|true|false|null|nan|[-+]?inf", re.IGNORECASE)
_LISTED: Final = "config_paths"
_SEARCH_DIRECTORY: Final = "search_dir"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag and the parameter that it sets.

    ``constant`` makes it a switch that takes no value; ``convert`` turns the value typed into that of the parameter.
    """

    names: tuple[str, ...]
    parameter: str
    constant: str | None = None
    convert: Callable[[str, Sequence[str]], str] | None = None
    verbatim: bool = False

    @property
    def meaning(self) -> str:
        """The override that it stands for, the way help shows it."""
        if self.parameter == _SEARCH_DIRECTORY:
            return "look for benchmarks, environments and servers here first"
        if self.convert:
            return f"short for a path in +{self.parameter}"
        return f"+{self.parameter}={self.constant or '<value>'}" if self.parameter != _LISTED else f"adds to +{_LISTED}"


def flag(*names: str, sets: str, constant: str | None = None) -> Flag:
    """Define a flag whose value is a text, or with ``constant`` a switch."""
    return Flag(names, sets, constant=constant)


def number(*names: str, sets: str) -> Flag:
    """Define a flag whose value is a number, ``null`` or another literal, and stays unquoted."""
    return Flag(names, sets, verbatim=True)


def chooses(*names: str, convert: Callable[[str, Sequence[str]], str], sets: str = _LISTED) -> Flag:
    """Define a flag that names something short (``--benchmark aime``) and stands for a path."""
    return Flag(names, sets, convert=convert)


VERBOSE: Final = flag("--verbose", "-v", sets="verbose", constant="true")
JSON: Final = flag("--json", sets="json", constant="true")
CONFIGURATION: Final = (
    flag("--config", sets=_LISTED),
    chooses("--benchmark", convert=selectors.benchmark),
    chooses("--environment", convert=selectors.environment),
    chooses("--resources-server", convert=selectors.resources_server),
    chooses("--model-type", convert=selectors.model_type),
    flag("--search-dir", sets=_SEARCH_DIRECTORY),
    flag("--model", "-m", sets="policy_model_name"),
    flag("--model-url", sets="policy_base_url"),
    flag("--model-api-key", sets="policy_api_key"),
)


@dataclass(frozen=True, slots=True)
class _Typed:
    flag: Flag
    value: str


def to_overrides(arguments: Sequence[str], flags: Sequence[Flag]) -> list[str]:
    """Rewrite a command line without flags."""
    overrides: list[str] = []
    typed: list[_Typed] = []
    words = iter(arguments)
    for word in words:
        if word.startswith("-"):
            typed.append(_read_flag(word, words, flags))
        else:
            overrides.append(word)
    return [*_as_overrides(typed, overrides), *overrides]


def quote(value: str) -> str:
    """Write a text so that the override grammar reads it back as the same text."""
    if _PLAIN.fullmatch(value) and not _LITERAL.fullmatch(value):
        return value
    # A backslash escapes only in front of a quote, the closing one included; elsewhere it is an ordinary character.
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', value)
    escaped = re.sub(r"(\\+)\Z", r"\1\1", escaped)
    return f'"{escaped}"'


def _read_flag(word: str, following: Iterator[str], flags: Sequence[Flag]) -> _Typed:
    name, equals, value = word.partition("=")
    known = {name: flag for flag in flags for name in flag.names}
    if name not in known:
        raise UsageError(f"unknown flag {name}", hint=did_you_mean(name, known, available="Flags"))
    found = known[name]
    if found.constant is not None:
        if equals:
            raise UsageError(f"{name} takes no value")
        return _Typed(found, found.constant)
    if not equals:
        value = next(following, "")
    if not value:
        raise UsageError(f"{name} needs a value", hint=f"for example: {name} <{found.parameter}>")
    return _Typed(found, value)


def _as_overrides(typed: Sequence[_Typed], overrides: Sequence[str]) -> list[str]:
    roots = [each.value for each in typed if each.flag.parameter == _SEARCH_DIRECTORY]
    listed: list[str] = []
    single: dict[str, str] = {}
    for each in typed:
        value = each.flag.convert(each.value, roots) if each.flag.convert else each.value
        if each.flag.parameter == _LISTED:
            listed.append(quote(value))
        elif each.flag.parameter != _SEARCH_DIRECTORY:
            single[each.flag.parameter] = value if each.flag.verbatim or each.flag.constant else quote(value)
    if listed and any(re.match(rf"\+*{_LISTED}=", override) for override in overrides):
        raise UsageError(
            "configuration files are given both by flags and by +config_paths",
            hint="name them all in one way: --config a.yaml --config b.yaml, or '+config_paths=[a.yaml,b.yaml]'",
        )
    files = [f"+{_LISTED}=[{','.join(listed)}]"] if listed else []
    return files + [f"+{name}={value}" for name, value in single.items()]
