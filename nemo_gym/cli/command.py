"""What a command is: its names, flags, summary and examples, and how it ends.

A :class:`Command` names its function and its parameter class instead of importing them, so that a command loads only
what it uses.

Flags are a second way to give parameters: ``--limit 5`` for ``+limit=5``. :func:`read_arguments` turns them into pairs
of key and value, which the configuration layer takes as they are, and leaves everything else for its grammar. Flags
that name configuration files are collected into one list under ``config_paths``. Some commands also take files
(:func:`with_files`) or the names of environments (``named_environments``).

Exit codes are part of the interface, because scripts branch on them:

    0    success
    1    a mistake in the configuration or its files, a failed check, or a crash with its traceback
    2    a mistake on the command line: unknown command, flag or parameter, missing or invalid value
    3    finished, but some rollouts failed; the failures are recorded
    130  interrupted; what was saved can be resumed
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

from nemo_gym.config.keys import POLICY_API_KEY, POLICY_BASE_URL, POLICY_MODEL_NAME
from nemo_gym.config.short_names import find_configuration
from nemo_gym.errors import ConfigError, ExitCode, UnfinishedRunError, UsageError, did_you_mean, nearest
from nemo_gym.io.process import garbage_collection_paused

_LISTED: Final = "config_paths"
_SEARCH_DIRECTORY: Final = "search_dir"


@dataclass(frozen=True, slots=True)
class Arguments:
    """What was given after the name of a command: pairs, and overrides that the configuration layer parses."""

    pairs: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()  # all of it as it was typed, for records of how a file was made

    def __bool__(self) -> bool:
        return bool(self.pairs or self.overrides)

    def sets(self, key: str) -> bool:
        """Whether a top-level key is given, in whichever way."""
        return key in self.pairs or any(_overrides(word, key) for word in self.overrides)

    def with_pairs(self, pairs: Mapping[str, Any], *, without: Collection[str]) -> "Arguments":
        """The same with more pairs, and without the overrides that these were read from."""
        rest = tuple(word for word in self.overrides if word not in without)
        return replace(self, pairs={**self.pairs, **pairs}, overrides=rest)


def _overrides(word: str, key: str) -> bool:
    return "=" in word and word.partition("=")[0].lstrip("+") == key


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag and the parameter that it sets.

    ``constant`` makes it a switch that takes no value; ``convert`` turns the typed value into the parameter's value,
    given the search directories; a flag with ``several`` may be repeated, and its parameter is a list.
    """

    names: tuple[str, ...]
    parameter: str
    constant: bool | None = None
    convert: Callable[[str, Sequence[str]], Any] | None = None
    several: bool = False
    short_name: bool = False  # its value stands for a path

    @property
    def meaning(self) -> str:
        """What the flag stands for, as shown in help."""
        if self.parameter == _SEARCH_DIRECTORY:
            return "search this directory first for benchmarks, environments and servers"
        if self.short_name:
            return f"short for a path in +{self.parameter}"
        if self.parameter == _LISTED:
            return f"adds to +{_LISTED}"
        return f"+{self.parameter}={'<value>' if self.constant is None else str(self.constant).lower()}"


def flag(*names: str, sets: str, several: bool = False) -> Flag:
    """Define a flag whose value is text."""
    return Flag(names, sets, several=several)


def switch(*names: str, sets: str, to: bool = True) -> Flag:
    """Define a flag that takes no value."""
    return Flag(names, sets, constant=to)


def number_flag(*names: str, sets: str) -> Flag:
    """Define a flag whose value is a number, or ``null``; other values are left to the parameter's validation."""
    return Flag(names, sets, convert=lambda value, _: _as_number(value))


def name_flag(name: str, *, kind: str) -> Flag:
    """Define a flag whose value is the short name of a configuration (``--benchmark aime``)."""

    def find(value: str, search: Sequence[str]) -> str:
        return find_configuration(kind, value, search)

    return Flag((name,), _LISTED, convert=find, several=True, short_name=True)


def folder_flag(*names: str, kind: str, sets: str) -> Flag:
    """Define a flag whose value is the name of a folder, which need not exist."""
    return Flag(names, sets, convert=lambda name, _: f"{kind}/{name}", short_name=True)


def _as_number(value: str) -> int | float | str | None:
    if value == "null":
        return None
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


VERBOSE: Final = switch("--verbose", "-v", sets="verbose")
JSON: Final = switch("--json", sets="json")
CONFIGURATION: Final = (
    flag("--config", sets=_LISTED, several=True),
    name_flag("--benchmark", kind="benchmarks"),
    name_flag("--environment", kind="environments"),
    name_flag("--resources-server", kind="resources_servers"),
    name_flag("--model-type", kind="responses_api_models"),
    flag("--search-dir", sets=_SEARCH_DIRECTORY),
    flag("--model", "-m", sets="policy_model_name"),
    flag("--model-url", sets="policy_base_url"),
    flag("--model-api-key", sets="policy_api_key"),
)


# The environment used in the examples of help.
EXAMPLE: Final = "resources_servers/example_single_tool_call"
EXAMPLE_CONFIG: Final = f"{EXAMPLE}/configs/example_single_tool_call.yaml"
EXAMPLE_CONFIGS: Final = (
    f'"+config_paths=[{EXAMPLE_CONFIG},responses_api_models/openai_model/configs/openai_model.yaml]"'
)

PREFIXES: Final = ("ng_", "nemo_gym_")
ROOTS: Final = ("ng", "gym")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its names, what it does, and where its code and its parameters are defined."""

    name: str
    path: str
    function: str
    parameters: str | None
    summary: str
    examples: tuple[str, ...]
    flags: tuple[Flag, ...] = ()
    open_ended: bool = False  # takes any key of the configuration, not only the parameters listed

    @property
    def script(self) -> str:
        """The name of the console script that people type most."""
        return PREFIXES[0] + self.name

    @property
    def group(self) -> str:
        """The group in the ``ng`` tree; empty for the few commands at the root."""
        return self.path.rpartition(" ")[0]

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names under which the command can be typed."""
        scripts = (prefix + self.name for prefix in PREFIXES)
        return tuple(dict.fromkeys((*scripts, f"{ROOTS[0]} {self.path}", f"{ROOTS[0]} {self.name}")))

    def load_function(self) -> Callable[[Arguments], int]:
        """Import the function, which takes the arguments and returns the exit code."""
        return cast("Callable[[Arguments], int]", _load(self.function))

    def load_parameters(self) -> type[Any] | None:
        """Import the class that describes the parameters."""
        return cast("type[Any]", _load(self.parameters)) if self.parameters else None


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    with garbage_collection_paused():
        return getattr(import_module(module), name)


@dataclass(frozen=True, slots=True)
class HelpRequest:
    """A request for help about a command, a group (``env``) or, with an empty group, all commands."""

    command: Command | None = None
    group: str = ""
    requested: bool = True


def exit_code(error: ConfigError) -> ExitCode:
    """Tell a mistake on the command line, or an error of a run that saved rollouts, from one in the configuration."""
    if isinstance(error, UnfinishedRunError):
        return ExitCode.FAILURES
    return ExitCode.USAGE if isinstance(error, UsageError) else ExitCode.ERROR


# ---- from the command line to pairs ----------------------------------------------------------------------------------
_PATH_SIGNS: Final = frozenset("./*?")  # a bare word with one of these is a file or a pattern


def read_arguments(given: Sequence[str], flags: Sequence[Flag]) -> Arguments:
    """Read what follows a command: flags become pairs, everything else stays as it is."""
    overrides: list[str] = []
    typed: list[tuple[Flag, Any]] = []
    remaining = iter(given)
    for word in remaining:
        if word.startswith("-"):
            typed.append(_read_flag(word, remaining, flags))  # takes its value from the same iterator
        else:
            overrides.append(word)
    found = Arguments(_pairs(typed), tuple(overrides), tuple(given))
    if _LISTED in found.pairs and any(_overrides(word, _LISTED) for word in overrides):
        raise UsageError(
            "configuration files are given both by flags and by +config_paths",
            hint="name them all in one way: --config a.yaml --config b.yaml, or '+config_paths=[a.yaml,b.yaml]'",
        )
    return found


def _instead_of(name: str, known: Mapping[str, Flag]) -> str:
    """What to type instead of a flag that does not exist: it may be called after the parameter that it would set."""
    parameter = name.lstrip("-").replace("-", "_")
    for each, flag in known.items():
        if flag.parameter == parameter and each.startswith("--"):
            return f"{each} sets {parameter}"
    hint = did_you_mean(name, known, available="Flags")
    return hint if nearest(name, known) else f"a parameter without a flag is written +{parameter}=<value>. {hint}"


def _read_flag(word: str, following: Iterator[str], flags: Sequence[Flag]) -> tuple[Flag, Any]:
    name, equals, value = word.partition("=")
    known = {name: flag for flag in flags for name in flag.names}
    if name not in known:
        raise UsageError(f"unknown flag {name}", hint=_instead_of(name, known))
    found = known[name]
    if found.constant is not None:
        if equals:
            raise UsageError(f"{name} takes no value")
        return found, found.constant
    if not equals:
        value = next(following, "")
    if not value:
        raise UsageError(f"{name} needs a value", hint=f"write {name} <value>; it sets +{found.parameter}")
    return found, value


def _pairs(typed: Sequence[tuple[Flag, Any]]) -> dict[str, Any]:
    search = [value for each, value in typed if each.parameter == _SEARCH_DIRECTORY]
    pairs: dict[str, Any] = {}
    for each, value in typed:
        given = each.convert(value, search) if each.convert else value
        if each.several:
            pairs.setdefault(each.parameter, []).append(given)
        elif each.parameter != _SEARCH_DIRECTORY:
            pairs[each.parameter] = given
    return _with_named_model(pairs)


def _with_named_model(pairs: dict[str, Any]) -> dict[str, Any]:
    """Replace a model that is named like ``openai:NAME`` by the configuration of its server."""
    name = pairs.get(POLICY_MODEL_NAME)
    if not isinstance(name, str):
        return pairs
    from nemo_gym.api.models import is_model_name, named_model  # noqa: PLC0415 - quick commands name no model

    if not is_model_name(name):
        return pairs
    named = named_model(name, base_url=pairs.get(POLICY_BASE_URL), api_key=pairs.get(POLICY_API_KEY))
    others = {key: value for key, value in pairs.items() if key != POLICY_MODEL_NAME}
    return {**others, **named.values, _LISTED: [*pairs.get(_LISTED, []), named.config_path]}


# ---- bare arguments --------------------------------------------------------------------------------------------------
def is_path(word: str) -> bool:
    """Whether a bare word on the command line is a file or a pattern."""
    return Path(word).exists() or ("=" not in word and bool(_PATH_SIGNS.intersection(word)))


def with_files(arguments: Arguments, parameter: str, *, as_list: bool) -> Arguments:
    """Accept files as people type them: bare, separated by commas, or without the plus.

    Together with those of a flag they become one value of the parameter: text with commas, or with ``as_list`` a list.
    """
    bare = {word: value for word in arguments.overrides if (value := _file_in(word, parameter))}
    if not bare:
        return arguments
    flagged = arguments.pairs.get(parameter, [])
    files = [*([flagged] if isinstance(flagged, str) else flagged), *bare.values()]
    if any(_overrides(word, parameter) for word in arguments.overrides if word not in bare):
        raise UsageError(
            f"files are given in two ways: {' '.join(files)} and +{parameter}",
            hint=f"name them all in one: +{parameter}={','.join(files)},<more>",
        )
    together = files if as_list and len(files) > 1 else ",".join(files)
    return arguments.with_pairs({parameter: together}, without=bare)


def _file_in(word: str, parameter: str) -> str:
    """The file that a word names; empty if it names none, or in quotes or brackets, which the grammar reads."""
    if is_path(word):
        return word
    value = word.partition("=")[2] if _overrides(word, parameter) else ""
    return value if value[:1] not in ("[", '"', "'", "$") else ""


def bare_words(arguments: Arguments) -> list[str]:
    """The words that set nothing, such as the names of environments."""
    for before, word in pairwise(arguments.overrides):
        if before.endswith("=") and "=" not in word:
            raise UsageError(
                f"there is a space in '{before} {word}'", hint=f"write it without the space: {before}{word}"
            )
    return [word for word in arguments.overrides if "=" not in word and not word.startswith("~")]
