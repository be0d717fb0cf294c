"""Resolves ``${...}`` and checks required values (``???``). Errors name the key rather than the library call.

Interpolation is lazy: a reference that cannot be resolved does no harm as long as nothing reads it. What a server
reads is resolved here, and all references that fail are reported in one error.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, OmegaConfBaseException

from nemo_gym.config.keys import MISSING
from nemo_gym.config.locate import Locator
from nemo_gym.errors import ConfigError, ConfigMissingValuesError


def missing_keys(data: Any, key: str = "") -> Iterator[str]:
    """The dotted keys of all values that are ``???``."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from missing_keys(value, f"{key}.{name}" if key else str(name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from missing_keys(value, f"{key}[{index}]")
    elif data == MISSING:
        yield key


def check_missing(data: Any, *, locator: Locator) -> None:
    """Refuse a configuration in which required values are not set. One error lists all of them."""
    keys = list(missing_keys(data))
    if not keys:
        return
    noun = "value is" if len(keys) == 1 else "values are"
    lines = [f"{len(keys)} required {noun} not set (???):", *(f"  {locator.at(key)}{key}" for key in keys)]
    # The command line cannot set a single element of a list, so the hint names the whole list.
    settable = dict.fromkeys(key.partition("[")[0] for key in keys)
    examples = " ".join(f"++{key}=<value>" for key in list(settable)[:3])
    raise ConfigMissingValuesError("\n".join(lines), hint=f"set them in env.yaml or on the command line: {examples}")


# OmegaConf's exceptions carry the reason only in their message.
_UNSET_KEY: Final = re.compile(r"Interpolation key '([^']+)' not found")
_UNSET_VARIABLE: Final = re.compile(r"Environment variable '([^']+)' not found")
_UNKNOWN_RESOLVER: Final = re.compile(r"Unsupported interpolation type ([\w.]+)")
_REFERENCE: Final = re.compile(r"\$\{\s*([A-Za-z_][\w-]*)")
_CALL: Final = re.compile(r"\$\{\s*[\w.]+\s*:")


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that can't be computed: its key, the reason, what would help, and the key that it lacks, if it does."""

    key: str
    reason: str
    fix: str
    unset: str = ""


def plain_data(node: Any) -> Any:
    """Plain data of a configuration node. Interpolations that can't be resolved are left as they are."""
    if not isinstance(node, Container):
        return node
    try:
        return OmegaConf.to_container(node, resolve=True)
    except InterpolationResolutionError:
        return _resolve_what_resolves(node)


def resolve(node: Any, *, key: str, locator: Locator) -> Any:
    """Plain data of a configuration node. One error names every interpolation that fails."""
    if not isinstance(node, Container):
        return node
    try:
        return OmegaConf.to_container(node, resolve=True)
    except InterpolationResolutionError:
        raise unresolved_error(list(find_unresolved(node, key)), locator=locator) from None


def unresolved_error(problems: list[Unresolved], *, locator: Locator) -> ConfigError:
    """One error for all values that can't be computed."""
    lines = [f"{locator.at(problem.key)}'{problem.key}' {problem.reason}" for problem in problems]
    unset = list(dict.fromkeys(problem.unset for problem in problems if problem.unset))
    fixes = [problem.fix for problem in problems if len(unset) < 2 or not problem.unset]
    if len(unset) > 1:
        values = "".join(f"\n  {key}: <value>" for key in unset)
        fixes.insert(0, f"put these into env.yaml, or pass each of them as '+<key>=<value>':{values}")
    return ConfigError("\n".join(lines), hint="\n".join(dict.fromkeys(fixes)))


def find_unresolved(node: Any, key: str) -> Iterator[Unresolved]:
    """Every value below the node whose interpolation fails."""
    for name, child_key in _children(node, key):
        if OmegaConf.is_interpolation(node, name):
            try:
                plain_or_error(node, name)
            except InterpolationResolutionError as error:
                yield _explain(child_key, error)
        elif not OmegaConf.is_missing(node, name):
            yield from find_unresolved(node[name], child_key)


def plain_or_error(node: Any, name: Any) -> Any:
    """The value of an interpolation, resolved to the bottom, so that pointing at a broken block fails here too."""
    value = node[name]
    return OmegaConf.to_container(value, resolve=True) if isinstance(value, Container) else value


def interpolated_roots(data: Any) -> set[str]:
    """The top-level keys that plain, unresolved data refers to, as in ``${my_key.x}``."""
    if isinstance(data, Mapping):
        return set().union(*(interpolated_roots(value) for value in data.values()))
    if isinstance(data, list):
        return set().union(*(interpolated_roots(value) for value in data))
    if isinstance(data, str) and "${" in data:
        return set(_REFERENCE.findall(_CALL.sub("", data)))
    return set()


def _children(node: Any, key: str) -> list[tuple[Any, str]]:
    if isinstance(node, DictConfig):
        return [(name, f"{key}.{name!s}" if key else str(name)) for name in node]
    if isinstance(node, ListConfig):
        return [(index, f"{key}[{index}]") for index in range(len(node))]
    return []


def _resolve_what_resolves(node: Any) -> Any:
    raw: Any = OmegaConf.to_container(node, resolve=False)
    for name, _ in _children(node, ""):
        try:
            child = None if OmegaConf.is_missing(node, name) else node[name]
        except InterpolationResolutionError:
            continue
        if not OmegaConf.is_missing(node, name):
            raw[name] = plain_data(child)
    return raw


def _explain(key: str, error: OmegaConfBaseException) -> Unresolved:
    text = str(error)
    if found := _UNSET_VARIABLE.search(text):
        variable = found[1]
        return Unresolved(
            key,
            f"needs the environment variable {variable}, which is not set",
            f"set the environment variable {variable}",
        )
    if (found := _UNSET_KEY.search(text)) or isinstance(error, InterpolationKeyError):
        name = found[1] if found else "?"
        return Unresolved(
            key,
            f"needs ${{{name}}}, which is not set",
            f"add '{name}: <value>' to env.yaml or pass '+{name}=<value>'",
            unset=name,
        )
    if found := _UNKNOWN_RESOLVER.search(text):
        return Unresolved(
            key, f"uses ${{{found[1]}:...}}, which is not a known resolver", "use ${key} or ${oc.env:NAME}"
        )
    return Unresolved(key, f"can't be resolved ({type(error).__name__})", "correct the ${...} expression")
