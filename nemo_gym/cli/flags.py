"""Flags: a second way to type parameters, ``--limit 5`` for ``+limit=5``.

:func:`to_overrides` turns flags into the overrides that the configuration layer reads, and leaves everything else as it
is. Flags that name configuration files are collected into one ``+config_paths=[…]``. Some commands also take bare
words: files (:func:`path_overrides`), or the name of an environment (:func:`named_configuration`).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from nemo_gym.cli.short_names import find_configuration, find_environment
from nemo_gym.errors import UsageError, did_you_mean

# What the override grammar reads without quotes, and which of that it would take for a number or a constant.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]+")
_LITERAL: Final = re.compile(r"[-+]?[\d._]+(e[-+]?\d+)?|true|false|null|nan|[-+]?inf", re.IGNORECASE)
_PATH_SIGNS: Final = frozenset("./*?")  # a bare word with one of these is a file or a pattern
_NAME: Final = re.compile(r"[A-Za-z_][\w-]*(/[\w-]+)?")  # of an environment or benchmark, maybe with a flavour
_LISTED: Final = "config_paths"
_SEARCH_DIRECTORY: Final = "search_dir"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag and the parameter that it sets.

    ``constant`` makes it a switch that takes no value; ``convert`` turns the typed value into the parameter's value;
    ``verbatim`` leaves the value unquoted; a flag with ``several`` may be repeated, and its parameter is a list.
    """

    names: tuple[str, ...]
    parameter: str
    constant: str | None = None
    convert: Callable[[str, Sequence[str]], str] | None = None
    verbatim: bool = False
    several: bool = False

    @property
    def meaning(self) -> str:
        """What the flag stands for, as shown in help."""
        if self.parameter == _SEARCH_DIRECTORY:
            return "search this directory first for benchmarks, environments and servers"
        if self.convert:
            return f"short for a path in +{self.parameter}"
        return f"+{self.parameter}={self.constant or '<value>'}" if self.parameter != _LISTED else f"adds to +{_LISTED}"


def flag(*names: str, sets: str, constant: str | None = None, several: bool = False) -> Flag:
    """Define a flag whose value is text, or with ``constant`` a switch."""
    return Flag(names, sets, constant=constant, several=several)


def number(*names: str, sets: str) -> Flag:
    """Define a flag whose value is a number, ``null`` or another literal, and stays unquoted."""
    return Flag(names, sets, verbatim=True)


def name_flag(*names: str, kind: str, sets: str = _LISTED) -> Flag:
    """Define a flag whose value is the short name of a configuration (``--benchmark aime``)."""
    return Flag(names, sets, convert=partial(find_configuration, kind))


def folder_flag(*names: str, kind: str, sets: str) -> Flag:
    """Define a flag whose value is the name of a folder, which need not exist."""
    return Flag(names, sets, convert=lambda name, _: f"{kind}/{name}")


VERBOSE: Final = flag("--verbose", "-v", sets="verbose", constant="true")
JSON: Final = flag("--json", sets="json", constant="true")
CONFIGURATION: Final = (
    flag("--config", sets=_LISTED),
    name_flag("--benchmark", kind="benchmarks"),
    name_flag("--environment", kind="environments"),
    name_flag("--resources-server", kind="resources_servers"),
    name_flag("--model-type", kind="responses_api_models"),
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
    """Replace all flags of a command line by overrides."""
    overrides: list[str] = []
    typed: list[_Typed] = []
    words = iter(arguments)
    for word in words:
        if word.startswith("-"):
            typed.append(_read_flag(word, words, flags))  # takes its value from the same iterator
        else:
            overrides.append(word)
    return [*_as_overrides(typed, overrides), *overrides]


def quote(value: str) -> str:
    """Quote text so that the override grammar reads it back unchanged."""
    if _PLAIN.fullmatch(value) and not _LITERAL.fullmatch(value):
        return value
    # A backslash escapes only before a quote, including the closing one; elsewhere it is an ordinary character.
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', value)
    escaped = re.sub(r"(\\+)\Z", r"\1\1", escaped)
    return f'"{escaped}"'


def is_path(word: str) -> bool:
    """Whether a bare word on the command line is a file or a pattern."""
    return Path(word).exists() or ("=" not in word and bool(_PATH_SIGNS.intersection(word)))


def path_overrides(words: Sequence[str], parameter: str, *, as_list: bool) -> list[str]:
    """Accept files as people type them: bare, separated by commas, or without the plus.

    Together they become one override of the parameter; other overrides stay as they are.
    """
    typed: list[str] = []
    rest: list[str] = []
    for word in words:
        name, _, value = word.partition("=")
        if is_path(word):
            typed.append(word)
        elif name.lstrip("+") == parameter and value and value[0] not in "[\"'$":
            typed.append(value)
        else:
            rest.append(word)
    if not typed:
        return rest
    if any(word.partition("=")[0].lstrip("+") == parameter for word in rest):
        raise UsageError(
            f"files are given in two ways: {' '.join(typed)} and +{parameter}",
            hint=f"name them all in one: +{parameter}={','.join(typed)},<more>",
        )
    value = f"[{','.join(map(quote, typed))}]" if as_list and len(typed) > 1 else quote(",".join(typed))
    return [*rest, f"+{parameter}={value}"]


def named_configuration(words: Sequence[str]) -> list[str]:
    """Read a bare ``NAME[/FLAVOR]`` as the configuration of that environment or benchmark; other words stay."""
    return [f"+{_LISTED}=[{quote(find_environment(word))}]" if _NAME.fullmatch(word) else word for word in words]


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
    several: dict[str, list[str]] = {}
    for each in typed:
        value = each.flag.convert(each.value, roots) if each.flag.convert else each.value
        if each.flag.parameter == _LISTED:
            listed.append(quote(value))
        elif each.flag.several:
            several.setdefault(each.flag.parameter, []).append(quote(value))
        elif each.flag.parameter != _SEARCH_DIRECTORY:
            single[each.flag.parameter] = value if each.flag.verbatim or each.flag.constant else quote(value)
    if listed and any(re.match(rf"\+*{_LISTED}=", override) for override in overrides):
        raise UsageError(
            "configuration files are given both by flags and by +config_paths",
            hint="name them all in one way: --config a.yaml --config b.yaml, or '+config_paths=[a.yaml,b.yaml]'",
        )
    files = [f"+{_LISTED}=[{','.join(listed)}]"] if listed else []
    files += [f"+{name}=[{','.join(values)}]" for name, values in several.items()]
    return files + [f"+{name}={value}" for name, value in single.items()]
