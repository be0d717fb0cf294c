"""Virtual environments for servers whose requirements this interpreter does not meet.

An environment is named after its requirements and interpreter, built once in the cache, and used only when it is
complete: one that was left half-built is removed and built again. It contains only what the server asks for; this
package and everything else comes from the running interpreter, after the environment's own packages.
"""

import asyncio
import fcntl
import hashlib
import logging
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from nemo_gym import INSTALL_DIR, __version__
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

COMPLETE = ".complete"
OURS = re.compile(r"(nemo[-_]gym|rollout[-_]gym|\.\./\.\.)", re.IGNORECASE)


def read_requirements(folder: Path) -> list[str]:
    """The lines of ``requirements.txt``, except those that name this package itself."""
    path = folder / "requirements.txt"
    if not path.is_file():
        return []
    lines = (line.split(" #")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#") and not OURS.search(line)]


def unmet(requirements: list[str]) -> list[str]:
    """The requirements that the running interpreter does not meet."""
    return [line for line in requirements if not _is_met(line)]


def _is_met(line: str) -> bool:
    # Few servers have requirements, and this import takes as long as a small Gym takes to start.
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415

    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return False  # an option, a path or a URL, which only pip understands
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class VenvOptions:
    """How environments are built."""

    reuse: bool = False  # use an existing environment as it is, even if the requirements have changed since
    pip_cache: str | None = None
    verbose: bool = False
    extra: tuple[str, ...] = ()  # requirements to install into every environment

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """The options that a configuration asks for."""
        version, ours = str(config.get("python_version") or ""), platform.python_version()
        if version and not f"{ours}.".startswith(f"{version}."):
            raise ConfigError(
                f"python_version is {version}, but environments of servers are built with Python {ours}",
                hint=f"start Rollout Gym with Python {version}, or leave python_version out",
            )
        return cls(
            reuse=bool(config.get("skip_venv_if_present")),
            pip_cache=config.get("uv_cache_dir"),
            verbose=bool(config.get("pip_install_verbose")),
            extra=tuple(map(str, config.get("head_server_deps") or ())),
        )

    def pip_install(self) -> list[str]:
        """The arguments with which the interpreter of an environment installs packages."""
        cache = ["--cache-dir", self.pip_cache] if self.pip_cache else []
        return ["-m", "pip", "install", "--disable-pip-version-check", "-v" if self.verbose else "--quiet", *cache]


async def ensure_venv(
    server: str, folder: Path, requirements: list[str], cache: Path, options: VenvOptions | None = None
) -> Path:
    """The interpreter of an environment with these requirements, built now if it does not exist yet.

    ``server`` is a name for messages, ``folder`` is where its requirements are relative to, and ``cache`` holds the
    environments.
    """
    return await asyncio.to_thread(_ensure, server, folder, requirements, cache, options or VenvOptions())


def _ensure(server: str, folder: Path, requirements: list[str], cache: Path, options: VenvOptions) -> Path:
    if options.reuse and (present := _present(folder, cache)) is not None:
        return present
    requirements = [*requirements, *options.extra]
    # Other requirements, another Python or another version of this package need another environment.
    digest = hashlib.sha256("\n".join([sys.version, __version__, *requirements]).encode()).hexdigest()[:12]
    home = cache / "venvs" / f"{folder.name}-{digest}"
    python = home / "bin" / "python"
    with _locked(home.with_suffix(".lock")):
        if not (home / COMPLETE).exists():
            logger.info("%s: building a virtual environment for %s", server, ", ".join(requirements))
            shutil.rmtree(home, ignore_errors=True)
            # A pip of its own would cost seconds and 15 MB, and packages of this interpreter are shared anyway.
            without_pip = ["--without-pip"] if find_spec("pip") else []
            _run(server, [sys.executable, "-m", "venv", *without_pip, str(home)], cwd=folder)
            _share_packages(home)
            output = _run(server, [str(python), *options.pip_install(), *requirements], cwd=folder)
            if options.verbose:
                logger.info("%s: %s", server, output)
            (home / COMPLETE).touch()
    return python


def _present(folder: Path, cache: Path) -> Path | None:
    """The interpreter of an existing environment: the server's own, else the one that was built last."""
    built = (path.parent for path in (cache / "venvs").glob(f"{folder.name}-*/{COMPLETE}"))
    homes = [folder / ".venv", *sorted(built, key=lambda home: -(home / COMPLETE).stat().st_mtime)]
    return next((python for home in homes if (python := home / "bin" / "python").exists()), None)


def _share_packages(home: Path) -> None:
    """Let the environment fall back on the packages of the running interpreter."""
    paths = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(INSTALL_DIR)])
    own = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    (own / "rollout_gym.pth").write_text("\n".join(paths) + "\n", "utf-8")


def _run(server: str, command: list[str], *, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise ConfigError(
            f"{server}: its virtual environment can't be built (`{' '.join(command[1:4])} …` exited with code "
            f"{done.returncode}):\n{tail}",
            hint=f"correct {cwd / 'requirements.txt'}, or install its packages into this environment",
        )
    return done.stdout.strip()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
