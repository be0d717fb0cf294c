"""Dockerfiles of tasks as steps that a world can take without a container engine, or why that is impossible.

Understood are one ``FROM``, and ``WORKDIR``, ``COPY``, ``ADD`` of local files, ``ENV``, ``ARG``, ``USER`` and ``RUN``
lines that need no network. What only describes an image (``CMD``, ``EXPOSE``, ``LABEL``, …) has no effect.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

_NO_EFFECT: Final = {"CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "VOLUME", "STOPSIGNAL", "HEALTHCHECK"}
OF_THE_BASE: Final = ("PATH", "HOME")  # variables whose values only the base knows; they are left as they are
_ARCHIVES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?::([-+])([^}]*))?\}|(\w+))")
# A command that can only succeed with a network; at the beginning of a line or behind && || ; | ( and sudo.
_NETWORK: Final = re.compile(
    r"(?:^|&&|\|\||[;|(])\s*(?:sudo\s+|\w+=\S+\s+)*("
    r"apt(?:-get)?\s+(?:-\S+\s+)*(?:update|install|upgrade)|apk\s+(?:-\S+\s+)*(?:add|update)|(?:yum|dnf)\s+(?:-\S+\s+)*install|"
    r"(?:python3?\s+-m\s+)?pip3?\s+install(?!.*--no-index)|uvx?\s+(?:pip|sync|add|tool|run|-p)|uvx\b|npm\s+(?:install|ci|i)\b|"
    r"npx\b|yarn\b|pnpm\b|cargo\s+(?:install|build|fetch)|go\s+(?:get|install)|gem\s+install|conda\s+install|"
    r"git\s+(?:-\S+\s+)*(?:clone|fetch|pull)\s+\S*(?:https?:|git@|ssh:)|(?:curl|wget)\b(?!.*(?:localhost|127\.0\.0\.1))"
    r")"
)


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Files of the task's folder that are copied; into ``target`` if it is a folder, else under that name."""

    sources: tuple[str, ...]
    target: str
    into: bool
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class RunStep:
    """A command, with the folder and the user it runs as."""

    arguments: tuple[str, ...]
    folder: str
    user: str | None
    line: int


@dataclass(slots=True)
class ImageRecipe:
    """What a Dockerfile makes of its base. ``obstacles`` say why a world can't take its steps."""

    base: str = ""
    steps: list[CopyStep | RunStep] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str | None = None
    obstacles: list[str] = field(default_factory=list)


class _Line(NamedTuple):
    number: int
    word: str
    rest: str


def read_dockerfile(path: Path) -> ImageRecipe:
    """The recipe in a Dockerfile. Nothing is refused: what a world can't do is among the obstacles."""
    recipe = ImageRecipe()
    arguments: dict[str, str] = {}
    for line in _lines(path.read_text("utf-8", "replace")):
        try:
            _add(recipe, line, arguments)
        except ValueError as error:
            recipe.obstacles.append(f"Dockerfile line {line.number}: {error}")
    if not recipe.base:
        recipe.obstacles.append("the Dockerfile has no FROM")
    return recipe


def needs_network(script: str) -> str | None:
    """The first command of a script that can only succeed with a network."""
    for line in script.replace("\\\n", " ").splitlines():
        if not line.lstrip().startswith("#") and (found := _NETWORK.search(line)):
            return " ".join(found.group(1).split())
    return None


def _add(recipe: ImageRecipe, line: _Line, arguments: dict[str, str]) -> None:
    known = {**arguments, **recipe.environment}
    match line.word:
        case "FROM":
            if recipe.base:
                raise ValueError("a second FROM: images in several stages need a container engine")
            words = [word for word in line.rest.split() if not word.startswith("--")]
            recipe.base = _filled(words[0], known)
        case "ARG":
            name, _, value = line.rest.partition("=")
            arguments[name.strip()] = _filled(_unquoted(value), known)
        case "ENV":
            recipe.environment |= {name: _filled(value, known) for name, value in _pairs(line.rest)}
        case "WORKDIR":
            recipe.workdir = str(PurePosixPath(recipe.workdir, _filled(_unquoted(line.rest), known)))
        case "USER":
            recipe.user = _filled(line.rest.strip(), known)
        case "COPY" | "ADD":
            recipe.steps.append(_copy(line, recipe.workdir, known))
        case "RUN":
            recipe.steps.append(_run(line, recipe))
        case word if word not in _NO_EFFECT:
            raise ValueError(f"{word} is not supported")


def _copy(line: _Line, workdir: str, known: Mapping[str, str]) -> CopyStep:
    options, rest = _options(line.rest)
    if "from" in options:
        raise ValueError(f"{line.word} --from copies out of another image")
    words = json.loads(rest) if rest.startswith("[") else shlex.split(_filled(rest, known))
    if any(word.startswith("<<") for word in words):
        raise ValueError("here-documents are not supported")
    *sources, target = words
    if not sources:
        raise ValueError(f"{line.word} needs a source and a target")
    if line.word == "ADD" and any("://" in each or each.endswith(_ARCHIVES) for each in sources):
        raise ValueError("ADD of an address or an archive is not supported")
    mode = options.get("chmod")
    into = target.endswith(("/", "/.")) or target in (".", "..") or len(sources) > 1
    return CopyStep(tuple(sources), str(PurePosixPath(workdir, target)), into, int(mode, 8) if mode else None)


def _run(line: _Line, recipe: ImageRecipe) -> RunStep:
    _, rest = _options(line.rest)
    if rest.startswith("<<"):
        raise ValueError("here-documents are not supported")
    if (command := needs_network(rest)) is not None:
        recipe.obstacles.append(f"Dockerfile line {line.number} needs a network: {command}")
    words = tuple(json.loads(rest)) if rest.startswith("[") else ("/bin/sh", "-c", rest)
    return RunStep(words, recipe.workdir, recipe.user, line.number)


def _lines(text: str) -> Iterator[_Line]:
    """The instructions, with continued lines joined and comments left out."""
    pending, started = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        if raw.lstrip().startswith("#") or (not raw.strip() and not pending):
            continue
        started = started or number
        if raw.rstrip().endswith("\\"):
            pending += raw.rstrip()[:-1] + " "
            continue
        word, _, rest = (pending + raw).strip().partition(" ")
        yield _Line(started, word.upper(), rest.strip())
        pending, started = "", 0
    if pending:
        word, _, rest = pending.strip().partition(" ")
        yield _Line(started, word.upper(), rest.strip())


def _options(rest: str) -> tuple[dict[str, str], str]:
    options = {}
    while found := re.match(r"--([\w-]+)(?:=(\S+))?\s+", rest):
        options[found.group(1)] = found.group(2) or ""
        rest = rest[found.end() :]
    return options, rest


def _pairs(rest: str) -> Iterator[tuple[str, str]]:
    if "=" not in rest.split(maxsplit=1)[0]:  # the old form: ENV NAME the value
        name, _, value = rest.partition(" ")
        yield name, value.strip()
        return
    for word in shlex.split(rest):
        name, _, value = word.partition("=")
        yield name, value


def _filled(text: str, known: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found.group(1) or found.group(4)
        if name in OF_THE_BASE and name not in known:
            return found.group(0)
        own = known.get(name, "")
        if found.group(2) == "-":
            return own or found.group(3)
        return found.group(3) if found.group(2) == "+" and own else ("" if found.group(2) == "+" else own)

    return _VARIABLE.sub(value, text)


def _unquoted(text: str) -> str:
    return " ".join(shlex.split(text))
