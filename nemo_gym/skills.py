"""Skills that a run gives to its agents, and the reference in each row that records which skills a rollout had.

A skills folder has one subfolder for each skill, with a ``SKILL.md`` that begins with YAML front matter.
"""

import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from nemo_gym.errors import ConfigError
from nemo_gym.io.yaml_text import read_yaml

SKILL_FILE = "SKILL.md"
FENCE = "---"


class SkillsConfig(BaseModel):
    """The skills folder of a run."""

    path: str


class SkillMetadata(BaseModel):
    """The front matter of a skill."""

    name: str
    description: str | None = None
    version: str | None = None


class SkillsRef(BaseModel):
    """The skills of a run: their folder, a digest of all their files, and their metadata."""

    path: str
    hash: str
    skills: list[SkillMetadata]


class SkillError(ConfigError, ValueError):
    """A skills folder can't be used."""


def load_skill_directory(path: str | Path) -> SkillsRef:
    """Read a skills folder; the reference keeps the path as given."""
    root = Path(path)
    if not root.is_dir():
        raise SkillError(f"skills path {str(path)!r} is not a directory", hint="give the folder that holds the skills")
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not folders:
        raise SkillError(
            f"skills path {str(path)!r} contains no skills", hint=f"a skill is a folder with a {SKILL_FILE}"
        )
    skills = [parse_skill_md(folder / SKILL_FILE) for folder in folders]
    return SkillsRef(path=str(path), hash=hash_skill_dir(root), skills=skills)


def parse_skill_md(path: Path) -> SkillMetadata:
    """Read the front matter of one skill."""
    if not path.is_file():
        raise SkillError(f"{path} does not exist", hint=f"each skill folder needs a {SKILL_FILE}")
    front = _front_matter(path)
    name, details = front.get("name"), front.get("metadata")
    if not isinstance(name, str) or not name:
        raise SkillError(f"{path}: the front matter has no name")
    version = details.get("version") if isinstance(details, dict) else None
    return SkillMetadata(
        name=name, description=front.get("description"), version=None if version is None else str(version)
    )


def hash_skill_dir(path: Path) -> str:
    """Twelve hexadecimal digits that change when any file of the folder changes."""
    digest = sha256()
    for file in sorted(entry for entry in path.rglob("*") if entry.is_file()):
        # Zero bytes separate names and contents, so that no two folders give the same sequence of bytes.
        digest.update(file.relative_to(path).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def stage_skills(path: str | Path, dest: str | Path) -> Path:
    """Copy the skills to the folder where an agent looks for them; files with the same names are replaced."""
    load_skill_directory(path)
    return Path(shutil.copytree(path, dest, dirs_exist_ok=True))


def _front_matter(path: Path) -> dict[str, Any]:
    opening, _, rest = path.read_text("utf-8").partition(f"{FENCE}\n")
    front, closing, _ = rest.partition(f"\n{FENCE}")
    if opening.strip() or not closing:
        raise SkillError(f"{path}: no front matter", hint=f"start the file with {FENCE}, name: …, {FENCE}")
    try:
        matter = read_yaml(front)
    except yaml.YAMLError as error:
        raise SkillError(f"{path}: the front matter is not YAML: {error}") from None
    if not isinstance(matter, dict):
        raise SkillError(f"{path}: the front matter is not a mapping")
    return matter


__all__ = [
    "SkillMetadata",
    "SkillsConfig",
    "SkillsRef",
    "hash_skill_dir",
    "load_skill_directory",
    "parse_skill_md",
    "stage_skills",
]
