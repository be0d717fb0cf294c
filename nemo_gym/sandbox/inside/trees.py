"""Files and folders of a box, read and written by a confined process of the box, and archives of whole folders.

An archive is a stream in tar's format with what a program could make itself: files, folders, links and pipes. It also
holds what an overlay records about its lower layer: removed names, and folders that hide the lower ones. Nobody trusts
an archive from a box: where one is unpacked, no link is followed.
"""

import errno
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Final

from nemo_gym.sandbox.inside.limits import MIB

_OPAQUE: Final = "user.overlay.opaque"
_OPAQUE_HEADER: Final = f"SCHILY.xattr.{_OPAQUE}"
_PIECE: Final = 1 << 18
_FOLDER_SIZE: Final = 512  # what an entry takes up in the archive besides its content
MISSING: Final = 2
FAILED: Final = 1


class TreeError(Exception):
    """A file or folder that can't be read or written as requested."""


def read_file(path: str, *, most: int) -> None:
    """Write a regular file to standard output."""
    # Without O_NONBLOCK, a pipe would wait for its writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise TreeError(f"{path} is not a regular file")
        data = file.read(most + 1)
        if len(data) > most:
            raise TreeError(f"{path} has {max(status.st_size, len(data)):,} bytes, more than the {most:,} allowed")
    _write_all(1, data)


def write_file(path: str, *, mode: int) -> None:
    """Put a file with the content of standard input in the place of whatever has that name."""
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    aside = os.path.join(folder, f".{name[:200]}.{os.getpid()}")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
            while piece := os.read(0, _PIECE):
                file.write(piece)
        os.chmod(aside, mode)
        os.replace(aside, path)
    except OSError:
        if os.path.lexists(aside):
            os.unlink(aside)
        raise


def pack_tree(top: int, output: IO[bytes], *, most: int) -> None:
    """Archive the folder behind a descriptor, without what is mounted in it."""
    left = most
    device = os.fstat(top).st_dev
    with tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_PIECE) as archive:
        for path, name, parent in _entries_below(top):
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if status.st_dev != device:
                continue
            left -= _FOLDER_SIZE + (status.st_size if stat.S_ISREG(status.st_mode) else 0)
            if left < 0:
                raise TreeError(f"the folder takes more than the {most / MIB:,.0f} MiB allowed")
            _add(archive, path, name, parent, status)


def unpack_tree(source: IO[bytes], folder: str, *, most: int, contained: bool = False) -> None:
    """Unpack an archive into a folder. With ``contained``, only files, folders and links that stay inside."""
    left = most
    with tarfile.open(fileobj=source, mode="r|", bufsize=_PIECE) as archive:
        for member in archive:
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if not parts or ".." in parts or not _is_plain(folder, parts[:-1]):
                continue
            left -= _FOLDER_SIZE + member.size
            if left < 0:
                raise TreeError(f"the archive takes more than the {most / MIB:,.0f} MiB allowed")
            if not contained or _is_contained(member, parts):
                _extract(archive, member, folder, parts)


def remove_tree(path: str) -> None:
    """Remove a file, a link or a whole folder; does nothing if there is none."""
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        for name in os.listdir(path):
            remove_tree(os.path.join(path, name))
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)


def handle_file(request: Mapping[str, Any]) -> int:
    """Do what a request says, with standard input and output; returns the exit code."""
    actions: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
        "read": lambda asked: read_file(asked["path"], most=asked["most"]),
        "write": lambda asked: write_file(asked["path"], mode=asked["mode"]),
        "pack": _pack_folder,
        "unpack": _unpack_folder,
    }
    try:
        actions[request["call"]](request)
    except (OSError, TreeError, tarfile.TarError, RecursionError) as error:
        text = f"{error.strerror}: {error.filename or request['path']}" if isinstance(error, OSError) else str(error)
        os.write(2, text.encode("utf-8", "replace")[:4096])
        return MISSING if isinstance(error, FileNotFoundError) else FAILED
    return 0


def _pack_folder(request: Mapping[str, Any]) -> None:
    top = request.get("top")
    if top is None:
        top = os.open(request["path"], os.O_RDONLY | os.O_DIRECTORY)
    with open(1, "wb", closefd=False) as output:
        pack_tree(top, output, most=request["most"])


def _unpack_folder(request: Mapping[str, Any]) -> None:
    if request["replace"]:
        remove_tree(request["path"])
    os.makedirs(request["path"], exist_ok=True)
    with open(0, "rb", closefd=False) as source:
        unpack_tree(source, request["path"], most=request["most"])


def _entries_below(top: int) -> Iterator[tuple[str, str, int]]:
    """Paths, names and the descriptors of their folders, folders before what is in them."""
    device = os.fstat(top).st_dev
    for path, folders, files, parent in os.fwalk(".", dir_fd=top, follow_symlinks=False):
        for name in sorted((*folders, *files)):
            yield os.path.normpath(os.path.join(path, name)), name, parent
        folders[:] = [
            name for name in sorted(folders) if os.stat(name, dir_fd=parent, follow_symlinks=False).st_dev == device
        ]


def _add(archive: tarfile.TarFile, path: str, name: str, parent: int, status: os.stat_result) -> None:
    member = tarfile.TarInfo(path)
    member.mode, member.mtime = stat.S_IMODE(status.st_mode), status.st_mtime
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG:
        try:
            with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent), "rb") as file:
                member.size = os.fstat(file.fileno()).st_size
                archive.addfile(member, _Padded(file, member.size))  # type: ignore[arg-type]
        except PermissionError:  # its owner made it unreadable
            return
        return
    if kind == stat.S_IFDIR:
        member.type = tarfile.DIRTYPE
        if _is_opaque(name, parent):
            member.pax_headers = {_OPAQUE_HEADER: "y"}
    elif kind == stat.S_IFLNK:
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=parent)
    elif kind == stat.S_IFIFO:
        member.type = tarfile.FIFOTYPE
    elif kind == stat.S_IFCHR and status.st_rdev == 0:
        member.type = tarfile.CHRTYPE  # an overlay's mark for a name that was removed
    else:
        return
    archive.addfile(member)


class _Padded:
    """A file that has exactly the given size, even if it gets shorter while it is read."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return self._file.read(size).ljust(size, b"\0")


def _is_opaque(name: str, parent: int) -> bool:
    try:
        folder = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=parent)
    except OSError:
        return False
    try:
        return os.getxattr(folder, _OPAQUE) == b"y"
    except OSError:
        return False
    finally:
        os.close(folder)


def _is_plain(folder: str, parts: list[str]) -> bool:
    """Whether all of these are folders, and none a link."""
    for part in parts:
        folder = os.path.join(folder, part)
        if os.path.islink(folder) or not os.path.isdir(folder):
            return False
    return True


def _is_contained(member: tarfile.TarInfo, parts: list[str]) -> bool:
    if member.issym():
        target = os.path.normpath(os.path.join(*parts[:-1], member.linkname) if parts[:-1] else member.linkname)
        return not os.path.isabs(target) and target.split("/")[0] != ".."
    return member.isfile() or member.isdir() or member.islnk()


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str, parts: list[str]) -> None:
    path = os.path.join(folder, *parts)
    if member.isdir():
        _extract_folder(member, path)
        return
    remove_tree(path)
    if member.islnk():
        linked = [part for part in member.linkname.split("/") if part not in ("", ".")]
        source = os.path.join(folder, *linked)
        if ".." not in linked and _is_plain(folder, linked[:-1]) and os.path.lexists(source):
            os.link(source, path, follow_symlinks=False)
    elif member.issym():
        os.symlink(member.linkname, path)
    elif member.isfifo():
        os.mkfifo(path, member.mode & 0o777)
    elif member.ischr() and (member.devmajor, member.devminor) == (0, 0):
        os.mknod(path, stat.S_IFCHR, 0)
    elif member.isfile():
        _extract_file(archive, member, path)


def _extract_folder(member: tarfile.TarInfo, path: str) -> None:
    if os.path.islink(path) or not os.path.isdir(path):
        remove_tree(path)
        os.mkdir(path)
    # A folder that its owner can't enter could not be filled.
    os.chmod(path, member.mode & 0o1777 | stat.S_IRWXU)
    if member.pax_headers.get(_OPAQUE_HEADER):
        os.setxattr(path, _OPAQUE, b"y")


def _extract_file(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    content = archive.extractfile(member)
    assert content is not None, "regular files have content"
    mode = member.mode & 0o777
    # With its mode from the start: a box without namespaces can't change modes.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "wb") as file:
        while piece := content.read(_PIECE):
            file.write(piece)
        os.fchmod(descriptor, mode)
    os.utime(path, (member.mtime, member.mtime))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            return
