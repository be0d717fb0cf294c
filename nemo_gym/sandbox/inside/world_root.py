"""The root folder of a world in namespaces: everything in it can be written, in memory, except the system's programs.

Without a root of its own, a world sees the programs of this machine, mounted read-only into a folder in memory. A root
of its own is a folder that many worlds share: an overlay keeps what a world changes in memory. In both cases the
memory file system has the size that the limits allow, so the kernel enforces them.
"""

import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final

from nemo_gym.sandbox.inside import kernel, system
from nemo_gym.sandbox.inside.limits import MIB, SandboxLimits
from nemo_gym.sandbox.inside.trees import unpack_tree
from nemo_gym.sandbox.inside.world_start import WorldStart

ROOTS: Final = "/.roots"  # where the fork server shows the folder that holds all roots
_SET_FLAGS: Final = 0x8914
_IS_UP: Final = 0x1
_FOR_ALL: Final = 0o1777
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - the world's own
_SAFE: Final = kernel.MS_NOSUID | kernel.MS_NODEV
_FOLDERS: Final = ("tmp", "var/tmp", "root", "home/sandbox", "etc", "dev", "proc")
_ACCOUNTS: Final = {
    **system.ACCOUNTS,
    "/etc/passwd": "root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n",
    "/etc/group": "root:x:0:\nsandbox:x:1000:\n",
}


def enter_world_root(place: str, start: WorldStart, limits: SandboxLimits, readable: Sequence[str]) -> int:
    """Build the root of a world over the folder ``place`` and enter it; a descriptor of what can be written."""
    options = f"size={limits.disk_mib * MIB},nr_inodes={limits.disk_files},mode=755"
    kernel.mount("world", place, "tmpfs", flags=_SAFE, options=options)
    root, changes = f"{place}/root", f"{place}/changes"
    for folder in (root, changes, f"{place}/work", f"{place}/shm"):
        os.mkdir(folder)
    top = root if start.root is None else changes
    for archive in start.archives:
        with open(archive, "rb", closefd=False) as source:
            unpack_tree(source, top, most=limits.disk_mib * MIB)
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    if start.root is None:
        kernel.mount(root, root, flags=kernel.MS_BIND)
        _show_system(root, readable)
    else:
        layers = f"lowerdir={ROOTS}/{start.root},upperdir={changes},workdir={place}/work,userxattr"
        kernel.mount("world", root, "overlay", flags=_SAFE, options=layers)
    _make_folders(root, start)
    _mount_devices(root, f"{place}/shm")
    kernel.mount("proc", f"{root}/proc", "proc", flags=_SAFE | kernel.MS_NOEXEC)
    kernel.enter_root(root)
    return descriptor


def open_port(port: int) -> socket.socket:
    """A socket that listens on a port of this network namespace's loopback."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def raise_loopback() -> None:
    """Switch on the loopback interface of a new network namespace, the only one it has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _IS_UP))


def _show_system(root: str, readable: Sequence[str]) -> None:
    for path in readable:
        target = root + path
        if os.path.lexists(target) and (os.path.islink(target) or os.path.ismount(target)):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            _touch(target)
        kernel.mount(path, target, flags=kernel.MS_BIND | kernel.MS_REC)


def _make_folders(root: str, start: WorldStart) -> None:
    for name in _FOLDERS:
        os.makedirs(os.path.join(root, name), exist_ok=True)
    for name in ("tmp", "var/tmp"):
        os.chmod(os.path.join(root, name), _FOR_ALL)
    if start.root is None:
        for path, text in _ACCOUNTS.items():
            if not os.path.lexists(root + path):
                with open(root + path, "w", encoding="utf-8") as file:
                    file.write(text)
    os.makedirs(f"{root}/{start.workdir}", exist_ok=True)


def _mount_devices(root: str, shared: str) -> None:
    kernel.mount("dev", f"{root}/dev", "tmpfs", flags=_SAFE, options="mode=755,size=64k")
    for path in system.DEVICES:
        _touch(root + path)
        kernel.mount(path, root + path, flags=kernel.MS_BIND)
    memory = f"{root}{_SHARED_MEMORY}"
    os.mkdir(memory)
    os.chmod(shared, _FOR_ALL)
    kernel.mount(shared, memory, flags=kernel.MS_BIND)
    for name, target in {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        os.symlink(target, f"{root}/dev/{name}")


def _touch(path: str) -> None:
    with open(path, "ab"):
        pass
