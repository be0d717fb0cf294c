"""Fetches the libraries of the viewer's page from npm and records where each byte came from.

    python scripts/vendor_viewer.py [--check]

Versions are pinned below. The files are copied out of the packages unchanged, with the licence of each; names,
versions, licences and SHA-256 hashes go into ``VENDOR.json`` beside them. ``--check`` fetches everything again and only
compares. npm fetches packages by name from its configured registry; no package scripts run.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

VENDOR: Final = Path(__file__).parent.parent / "nemo_gym" / "view" / "static" / "vendor"
RECORD: Final = "VENDOR.json"


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned npm package, and which of its files the page uses under which name."""

    name: str
    version: str
    licence: str  # of two to choose from, the one we chose
    purpose: str
    files: Mapping[str, str]

    @property
    def licence_name(self) -> str:
        """The file name of its licence."""
        return f"LICENSE-{self.name}.txt"


PACKAGES: Final = (
    Package(
        "preact",
        "10.29.8",
        "MIT",
        "components",
        {"preact.js": "dist/preact.umd.js", "preact-hooks.js": "hooks/dist/hooks.umd.js"},
    ),
    Package("htm", "3.1.1", "Apache-2.0", "templates without a build step", {"htm.js": "dist/htm.umd.js"}),
    Package("marked", "18.2.0", "MIT", "markdown", {"marked.js": "lib/marked.umd.js"}),
    Package("dompurify", "3.4.17", "Apache-2.0", "sanitiser", {"purify.js": "dist/purify.min.js"}),
    Package("katex", "0.19.1", "MIT", "mathematics, as MathML", {"katex.js": "dist/katex.min.js"}),
)


def main() -> int:
    """Write the vendored files, or compare them with what npm has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with npm, write nothing")
    check: bool = parser.parse_args().check
    wanted = fetch_all()
    if check:
        return compare(wanted)
    VENDOR.mkdir(parents=True, exist_ok=True)
    for stale in set(VENDOR.iterdir()) - {VENDOR / name for name in wanted}:
        stale.unlink()
    for name, content in wanted.items():
        (VENDOR / name).write_bytes(content)
        print(f"{len(content):>8,}  {name}")
    return 0


def fetch_all() -> dict[str, bytes]:
    """Fetch every file of the folder, by name, including their record."""
    files: dict[str, bytes] = {}
    entries: list[dict[str, Any]] = []
    for package in PACKAGES:
        content = fetch(package)
        files |= content
        entries.append(entry(package, content))
    return files | {RECORD: (json.dumps({"packages": entries}, indent=2) + "\n").encode()}


def fetch(package: Package) -> dict[str, bytes]:
    """Fetch the files of a package that we use, by their new names."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--ignore-scripts", f"{package.name}@{package.version}"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            kept = {name: member(tar, path) for name, path in package.files.items()}
            return kept | {package.licence_name: member(tar, "LICENSE")}


def member(tar: tarfile.TarFile, path: str) -> bytes:
    """Read one file of a package."""
    file = tar.extractfile(f"package/{path}")
    if file is None:
        raise SystemExit(f"error: {path} is not a file of the package")
    return file.read()


def entry(package: Package, content: Mapping[str, bytes]) -> dict[str, Any]:
    """Build the record of a package."""
    return {
        "name": package.name,
        "version": package.version,
        "purpose": package.purpose,
        "licence": package.licence,
        "licence_file": package.licence_name,
        "files": [
            {"file": name, "source": package.files.get(name, "LICENSE"), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in content.items()
        ],
    }


def compare(wanted: Mapping[str, bytes]) -> int:
    """Report which files differ; return 1 if any does."""
    kept = {path.name: path.read_bytes() for path in VENDOR.iterdir()} if VENDOR.is_dir() else {}
    differing = sorted(name for name in {*kept, *wanted} if kept.get(name) != wanted.get(name))
    for name in differing:
        print(f"differs: {name}", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
