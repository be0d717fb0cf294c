"""Root file systems of worlds in namespaces: a folder, a tarball or an archive of an image, prepared once.

Each is unpacked into a folder of the cache, where its files belong to the user that worlds run as; worlds change only
a layer above it. It is built aside and renamed when it is complete. Owners, devices and setuid bits are left out.
"""

import contextlib
import hashlib
import json
import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.inside.trees import pack_tree, unpack_tree
from nemo_gym.sandbox.interface import SandboxCreateError

_WORLD_USER: Final = 65534  # the user that root's worlds have outside
_MOST: Final = 1 << 40
_MOST_LINKS: Final = 40
_REMOVED: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_ABOUT: Final = "about.json"
_ARCHIVE_HINT: Final = "a root is a folder, a tarball or an archive of an image (podman save --format oci-archive)"


@dataclass(frozen=True, slots=True)
class PreparedRoot:
    """A root in the cache: its name there, and what its image says about commands."""

    key: str
    environment: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None


def default_roots_folder() -> Path | None:
    """The cache of this user, made if needed; None if there is no place for one."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rollout-gym" / "roots"
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that can't be written
        return None
    return cache


def prepare_root(source: str | Path, cache: Path) -> PreparedRoot:
    """The root that a source describes, unpacked into the cache unless it is there already."""
    path = Path(source).expanduser()
    if not path.exists():
        raise SandboxCreateError(
            f"{source}: there is no such folder or archive. {_ARCHIVE_HINT}; "
            "only the level 'container' starts an image by its name"
        )
    key = _fingerprint(path.resolve())
    if not (cache / key).exists():
        cache.mkdir(parents=True, exist_ok=True)
        _build(path, cache, key)
    about = json.loads((cache / f"{key}.{_ABOUT}").read_text("utf-8"))
    return PreparedRoot(key, about["environment"], about["workdir"])


def _build(path: Path, cache: Path, key: str) -> None:
    aside = Path(tempfile.mkdtemp(dir=cache, prefix=".aside-"))
    root = aside / "root"
    root.mkdir(mode=0o755)
    try:
        about = _copy_folder(path, root, aside) if path.is_dir() else _unpack_archive(path, root)
        if os.geteuid() == 0:
            _give_away(root)
        about_file = aside / _ABOUT
        about_file.write_text(json.dumps(about), "utf-8")
        about_file.rename(cache / f"{key}.{_ABOUT}")
        # Another process may have been faster; a folder that is not empty can't be replaced.
        with contextlib.suppress(OSError):
            root.rename(cache / key)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _fingerprint(path: Path) -> str:
    """A name that changes when the source does, as far as sizes and times tell."""
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape"))
    for each in sorted((str(path), *_below(str(path)))):
        status = os.lstat(each)
        digest.update(f"{each}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_mode}\n".encode("utf-8", "replace"))
    return digest.hexdigest()[:32]


def _copy_folder(path: Path, root: Path, aside: Path) -> dict[str, Any]:
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with tempfile.TemporaryFile(dir=aside) as archive:
            pack_tree(top, archive, most=_MOST)
            archive.seek(0)
            unpack_tree(archive, str(root), most=_MOST)
    finally:
        os.close(top)
    return {"environment": {}, "workdir": None}


def _unpack_archive(path: Path, root: Path) -> dict[str, Any]:
    try:
        with tarfile.open(path) as archive:
            names = set(archive.getnames())
            if names.isdisjoint({"index.json", "manifest.json"}) or names & {"usr", "./usr", "bin", "./bin"}:
                _apply_layer(archive, root)
                return {"environment": {}, "workdir": None}
            config, layers = _read_image(archive)
            for layer in layers:
                with tarfile.open(fileobj=archive.extractfile(layer)) as changes:
                    _apply_layer(changes, root)
    except (tarfile.TarError, KeyError, ValueError, EOFError) as error:
        raise ConfigError(f"{path}: not an archive that can be read ({error})", hint=_ARCHIVE_HINT) from None
    variables = (each.partition("=") for each in config.get("Env") or ())
    return {"environment": {name: value for name, _, value in variables}, "workdir": config.get("WorkingDir") or None}


def _read_image(archive: tarfile.TarFile) -> tuple[dict[str, Any], list[str]]:
    """The configuration of an image and the names of its layers, lowest first."""

    def read(name: str) -> Any:
        file = archive.extractfile(name)
        assert file is not None, "blobs are files"
        return json.loads(file.read())

    def blob(digest: str) -> str:
        return f"blobs/{digest.replace(':', '/')}"

    if "index.json" in archive.getnames():
        manifest = read(blob(read("index.json")["manifests"][0]["digest"]))
        while "manifests" in manifest:  # a list of images for several machines
            manifest = read(blob(manifest["manifests"][0]["digest"]))
        layers = [blob(layer["digest"]) for layer in manifest["layers"]]
        return read(blob(manifest["config"]["digest"])).get("config") or {}, layers
    manifest = read("manifest.json")[0]
    return read(manifest["Config"]).get("config") or {}, list(manifest["Layers"])


def _apply_layer(archive: tarfile.TarFile, root: Path) -> None:
    for member in archive:
        folder, name = posixpath.split(posixpath.normpath("/" + member.name))
        if not name:
            continue
        place = _inside(root, folder)
        place.mkdir(parents=True, exist_ok=True)
        if name == _OPAQUE:
            for entry in place.iterdir():
                _remove(entry)
        elif name.startswith(_REMOVED):
            _remove(place / name.removeprefix(_REMOVED))
        else:
            _add(archive, member, place / name, root)


def _add(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, root: Path) -> None:
    if member.isdir():
        if target.is_symlink() or not target.is_dir():
            _remove(target)
            target.mkdir()
        target.chmod(member.mode & 0o777 | member.mode & stat.S_ISVTX | stat.S_IRWXU)
        return
    if member.isdev() and not member.isfifo():
        return
    _remove(target)
    if member.issym():
        target.symlink_to(member.linkname)
    elif member.islnk():
        folder, name = posixpath.split(posixpath.normpath("/" + member.linkname))
        os.link(_inside(root, folder) / name, target, follow_symlinks=False)
    elif member.isfile():
        content = archive.extractfile(member)
        assert content is not None, "regular files have content"
        with target.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        target.chmod(member.mode & 0o777 | stat.S_IRUSR)
        os.utime(target, (member.mtime, member.mtime))


def _inside(root: Path, folder: str) -> Path:
    """Where a folder of an archive is, with links resolved as they are inside the root."""
    place: list[str] = []
    parts = _parts(folder)
    links = 0
    while parts:
        part = parts.pop(0)
        if part == "..":
            place = place[:-1]
            continue
        candidate = root.joinpath(*place, part)
        if not candidate.is_symlink():
            place.append(part)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise ValueError(f"{folder} leads through too many links")
        target = str(candidate.readlink())
        place = [] if target.startswith("/") else place
        parts = [*_parts(target), *parts]
    return root.joinpath(*place)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _give_away(root: Path) -> None:
    for path in (str(root), *_below(str(root))):
        os.chown(path, _WORLD_USER, _WORLD_USER, follow_symlinks=False)


def _below(folder: str) -> Iterator[str]:
    for path, folders, files in os.walk(folder):
        yield from (f"{path}/{name}" for name in (*folders, *files))
