"""``ng_help`` and ``ng_version``. Both must answer at once, so this module imports little."""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module, metadata
from typing import Any, Final

from nemo_gym import PARENT_DIR, __version__
from nemo_gym.cli import console, manual
from nemo_gym.cli.command import HelpRequest
from nemo_gym.errors import ExitCode, UsageError

DEPENDENCIES: Final = ("aiohttp", "fastapi", "hydra-core", "numpy", "omegaconf", "openai", "pydantic", "ray", "uvicorn")


def show_help(overrides: Sequence[str]) -> int:
    """List all commands."""
    if overrides:
        raise UsageError("ng_help takes no parameters", hint="for one command: ng_collect_rollouts --help")
    return manual.show(HelpRequest())


def version(overrides: Sequence[str]) -> int:
    """Show versions and the machine, as text or JSON."""
    console.emit(_version_json() if _wants_json(overrides) else _version_text())
    return ExitCode.OK


def _wants_json(overrides: Sequence[str]) -> bool:
    if not overrides:
        return False  # parsing takes most of the start-up time, and there is nothing to parse
    parameters = import_module("nemo_gym.cli.parameters")
    return bool(parameters.read_parameters(parameters.VersionConfig, overrides).json_)


def _version_json() -> str:
    facts = {"nemo_gym": __version__, "python": platform.python_version(), "python_path": sys.executable}
    packages = {name: _installed(name) for name in DEPENDENCIES}
    machine = {name: find_out() for name, _, find_out in _MACHINE}
    places = {"installation_path": str(PARENT_DIR), "dependencies": packages, "system": machine}
    return json.dumps({**facts, **places}, indent=2)


def _version_text() -> str:
    def indented(facts: Iterable[tuple[str, Any]], unknown: str) -> Iterator[str]:
        return (f"  {title}: {unknown if fact is None else fact}" for title, fact in facts)

    machine = [(title, find_out()) for _, title, find_out in _MACHINE]
    memory = f"{machine[-1][1]} GB" if machine[-1][1] else None
    return "\n".join(
        (
            f"Rollout Gym v{__version__}, with the interface of NeMo Gym",
            f"Python {platform.python_version()} ({sys.executable})",
            f"Installation: {PARENT_DIR}",
            "\nKey Dependencies:",
            *indented(((name, _installed(name)) for name in DEPENDENCIES), "not installed"),
            "\nSystem:",
            *indented([*machine[:-1], (machine[-1][0], memory)], "unknown"),
        )
    )


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _memory_gb() -> float | None:
    """Memory of the machine, or None where the system does not report it."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 2)
    except (AttributeError, ValueError, OSError):
        return None


# Facts about the machine: the key in JSON, the title in text, and the function that finds it out.
_MACHINE: Final[tuple[tuple[str, str, Callable[[], str | int | float | None]], ...]] = (
    ("os", "OS", lambda: f"{platform.system()} {platform.release()}"),
    ("platform", "Platform", platform.platform),
    ("architecture", "Architecture", platform.machine),
    ("processor", "Processor", lambda: platform.processor() or "unknown"),
    ("cpus", "CPUs", os.cpu_count),
    ("memory_gb", "Memory", _memory_gb),
)
