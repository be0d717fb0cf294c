"""What a command is: its names, flags, summary and examples, and how it ends.

A :class:`Command` names its function and its parameter class instead of importing them, so that a command loads only
what it uses.

Flags are a second way to type parameters: ``--limit 5`` for ``+limit=5``. :func:`to_overrides` turns them into the
overrides that the configuration layer reads, and leaves everything else as it is. Flags that name configuration files
are collected into one ``+config_paths=[…]``. Some commands also take bare words: files (:func:`path_overrides`), or the
name of an environment (:func:`named_configuration`).

A configuration has a short name: ``mcqa`` stands for ``resources_servers/mcqa/configs/mcqa.yaml``, and ``NAME/FLAVOR``
picks one of several files in a folder. Folders are looked for in the given search directories, then in the working
directory, then where the package is installed.

Exit codes are part of the interface, because scripts branch on them:

    0    success
    1    a mistake in the configuration or its files, a failed check, or a crash with its traceback
    2    a mistake on the command line: unknown command, flag or parameter, missing or invalid value
    3    finished, but some rollouts failed; the failures are recorded
    130  interrupted; what was saved can be resumed
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from nemo_gym import PARENT_DIR
from nemo_gym.errors import ConfigError, ExitCode, UsageError, did_you_mean, nearest
from nemo_gym.io.process import garbage_collection_paused

if TYPE_CHECKING:
    from pydantic import BaseModel

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
    return Flag(names, sets, convert=lambda name, search: find_configuration(kind, name, search))


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

    def load_function(self) -> Callable[[Sequence[str]], int]:
        """Import the function, which takes the overrides and returns the exit code."""
        return cast("Callable[[Sequence[str]], int]", _load(self.function))

    def load_parameters(self) -> "type[BaseModel] | None":
        """Import the class that describes the parameters."""
        return cast("type[BaseModel]", _load(self.parameters)) if self.parameters else None


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    with garbage_collection_paused():
        return getattr(import_module(module), name)


@dataclass(frozen=True, slots=True)
class HelpRequest:
    """A request for help about a command, a group (``env``) or, with an empty group, all commands."""

    command: Command | None = None
    group: str = ""
    asked: bool = True


def exit_code(error: ConfigError) -> ExitCode:
    """Distinguish a mistake on the command line from one in the configuration."""
    return ExitCode.USAGE if isinstance(error, UsageError) else ExitCode.ERROR


# ---- flags to overrides ----------------------------------------------------------------------------------------------
# What the override grammar reads without quotes, and which of that it would take for a number or a constant.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]+")
_LITERAL: Final = re.compile(r"[-+]?[\d._]+(e[-+]?\d+)?|true|false|null|nan|[-+]?inf", re.IGNORECASE)
_PATH_SIGNS: Final = frozenset("./*?")  # a bare word with one of these is a file or a pattern
_NAME: Final = re.compile(r"[A-Za-z_][\w-]*(/[\w-]+)?")  # of an environment or benchmark, maybe with a flavour


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


# ---- bare words ------------------------------------------------------------------------------------------------------
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
        raise UsageError(f"{name} needs a value", hint=f"write {name} <value>; it sets +{found.parameter}")
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


# ---- short names of configurations -----------------------------------------------------------------------------------
class _Layout(NamedTuple):
    """Where the folders of one kind keep their configurations, and which of them is meant if none is chosen."""

    pattern: str
    usual: str = ""  # by default the one with the name of the folder


_LAYOUTS: Final = {
    "resources_servers": _Layout("configs/*.yaml"),
    "responses_api_models": _Layout("configs/*.yaml"),
    "environments": _Layout("*.yaml", "config"),
    "benchmarks": _Layout("*.yaml", "config"),
}


def find_configuration(kind: str, value: str, search: Sequence[str] = ()) -> str:
    """The path of the configuration ``NAME[/FLAVOR]`` below ``resources_servers``, ``benchmarks`` and so on."""
    name, _, flavor = value.partition("/")
    layout = _LAYOUTS[kind]
    roots = [*map(Path, search), Path(), PARENT_DIR]
    for root in roots:
        files = {file.stem: file for file in sorted((root / kind / name).glob(layout.pattern))}
        if files:
            chosen = _pick(f"{kind}/{name}", files, flavor, layout.usual or name)
            return str(chosen.relative_to(PARENT_DIR) if root == PARENT_DIR else chosen)
    known = _configured(kind, roots)
    raise UsageError(
        f"no {kind}/{name} with a configuration file", hint=did_you_mean(name, known, available=f"In {kind}")
    )


def _configured(kind: str, roots: Sequence[Path]) -> set[str]:
    """The names of all folders of a kind that have a configuration."""
    pattern = _LAYOUTS[kind].pattern
    return {path.name for root in roots for path in (root / kind).glob("*") if any(path.glob(pattern))}


def find_environment(value: str) -> str:
    """The path of the configuration ``NAME[/FLAVOR]`` of an environment or a benchmark, whichever has that name."""
    name = value.partition("/")[0]
    known: set[str] = set()
    for kind in ("resources_servers", "environments", "benchmarks"):
        names = _configured(kind, (Path(), PARENT_DIR))
        if name in names:
            return find_configuration(kind, value)
        known |= names
    similar = f"did you mean {' or '.join(near)}? " if (near := nearest(name, known)) else ""
    raise UsageError(
        f"no environment or benchmark is called {name}",
        hint=f"{similar}ng search <word> finds them by topic; a file goes into --config",
    )


def _pick(folder: str, files: dict[str, Path], flavor: str, usual: str) -> Path:
    if not flavor and len(files) == 1:
        return next(iter(files.values()))
    wanted = flavor or usual
    if wanted in files:
        return files[wanted]
    problem = f"{folder} has no configuration {flavor!r}" if flavor else f"{folder} has several configurations"
    name = Path(folder).name
    raise UsageError(problem, hint=f"choose one: {', '.join(f'{name}/{stem}' for stem in files)}")
