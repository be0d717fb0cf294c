"""Boxes in namespaces: each has its own users, processes and mounts, no network, and a read-only system.

The fork server enters user, mount, process, network, IPC and UTS namespaces once and builds a root folder that contains
only what boxes may see. Each box is a further user, mount and process namespace inside, with a writable folder in
memory. When the first process of a box ends, the kernel ends all others, and the mounts of the box disappear.
"""

import os
import resource
import signal
from collections.abc import Sequence
from typing import Any, Final

from nemo_gym.sandbox.inside import kernel, seccomp, system
from nemo_gym.sandbox.inside.limits import MIB, SandboxLimits
from nemo_gym.sandbox.inside.world_root import ROOTS, enter_world_root, open_port, raise_loopback
from nemo_gym.sandbox.inside.world_start import StartedWorld, WorldStart

FOLDER: Final = "/box"
_SERVER: Final = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
)
_BOX: Final = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID
_TWO_USERS: Final = "0 0 1\n1 65534 1"
_USER: Final = 1000
_FIRST_KERNEL: Final = (5, 14)  # older ones count all processes of a user, not only those in the namespace


class NamespaceLevel:
    """The fork server inside its namespaces."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._readable: list[str] = settings["readable"]
        _build_root(settings["folder"], self._readable, settings["hidden"], settings["roots"])
        kernel.set_hostname("sandbox")
        if settings["users"] == _TWO_USERS:
            # Root switches to an unprivileged user, because limits on processes do not apply to root.
            os.setresgid(1, 1, 1)
            os.setresuid(1, 1, 1)
        self._user, self._group = os.geteuid(), os.getegid()
        self._filter = seccomp.assemble(kernel.architecture(), one_group=False)
        self._filter_with_sockets = seccomp.assemble(kernel.architecture(), one_group=False, sockets=True)
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # otherwise a box could not write its own user map
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)

    def fork(self, *, own_network: bool) -> int:
        return kernel.clone(_BOX | (kernel.CLONE_NEWNET if own_network else 0))

    def box(self, limits: SandboxLimits) -> "NamespaceBox":
        _map_users("self", f"{_USER} {self._user} 1", f"{_USER} {self._group} 1")
        _mount_folder(limits)
        kernel.mount("proc", "/proc", "proc", flags=kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        return NamespaceBox(FOLDER, self._filter)

    def world(self, start: WorldStart, limits: SandboxLimits) -> StartedWorld:
        """Make a world whose first process is the calling one."""
        _map_users("self", f"{start.user} {self._user} 1", f"{start.user} {self._group} 1")
        top = enter_world_root(FOLDER, start, limits, self._readable)
        listener = None
        if start.loopback:
            raise_loopback()
            listener = open_port(start.port) if start.port is not None else None
        filter_program = self._filter_with_sockets if start.loopback else self._filter
        return StartedWorld(NamespaceBox("/", filter_program, top), os.path.join("/", start.workdir), listener)


def fork_server() -> int:
    """Fork the process that becomes the fork server; returns 0 in it, which must then ask for its ``users``."""
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    if release < _FIRST_KERNEL:
        raise OSError(f"Linux {'.'.join(map(str, release))} is older than 5.14")
    return kernel.clone(_SERVER)


def map_server_users(pid: int) -> str:
    """Write the user map of the fork server from outside: normally one user, two if this process is root."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            _map_users(str(pid), _TWO_USERS, _TWO_USERS)
        except OSError:
            pass
        else:
            return _TWO_USERS
    # Not mapped to 0, because inner namespaces could not map that any further.
    _map_users(str(pid), f"1 {user} 1", f"1 {group} 1")
    return ""


class NamespaceBox:
    """A box as seen by its first process. ``top`` is a descriptor of a world's changes."""

    def __init__(self, folder: str, filter_program: bytes, top: int | None = None) -> None:
        self.folder = folder
        self.top = top
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # programs can't open the supervisor's files below /proc
        self._filter = filter_program

    def confine(self, limits: SandboxLimits) -> None:
        os.setsid()
        # One more, because the first process of the box counts too.
        kernel.set_limit(resource.RLIMIT_NPROC, limits.processes + 1)
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        seccomp.install(self._filter)

    def processes(self) -> Sequence[str]:
        return [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]

    def end_processes(self, leader: int) -> None:
        del leader
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return

    def over_disk(self, limits: SandboxLimits) -> bool:
        """Always false: the file system of the folder is exactly as large as the limit."""
        del limits
        return False

    def reset(self, limits: SandboxLimits) -> None:
        """Mount an empty folder in its place. No process is left that could use the old one."""
        kernel.unmount(FOLDER)
        _mount_folder(limits)

    def remove(self) -> None:
        """Nothing to do: the kernel removes the folder together with its namespace."""


def _mount_folder(limits: SandboxLimits) -> None:
    options = f"size={limits.disk_mib * MIB},nr_inodes={limits.disk_files},mode=755"
    kernel.mount("box", FOLDER, "tmpfs", flags=kernel.MS_NOSUID | kernel.MS_NODEV, options=options)
    for name in ("tmp", "shm", "workspace"):
        os.mkdir(os.path.join(FOLDER, name))


def _map_users(pid: str, users: str, groups: str) -> None:
    # The kernel accepts a group map from an unprivileged process only after setgroups has been denied.
    for name, text in (("setgroups", "deny"), ("uid_map", users), ("gid_map", groups)):
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def _build_root(root: str, readable: Sequence[str], hidden: Sequence[str], roots: str | None) -> None:
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)  # otherwise mounts would show on the host
    kernel.mount("root", root, "tmpfs", flags=kernel.MS_NOSUID | kernel.MS_NODEV, options="mode=755,size=1m")
    for path in readable:
        _show(root, path)
    for path in (path for path in hidden if os.path.isdir(root + path)):
        kernel.mount("hidden", root + path, "tmpfs", flags=kernel.MS_RDONLY, options="mode=755,size=4k")
    if roots is not None:
        os.mkdir(root + ROOTS)
        kernel.mount(roots, root + ROOTS, flags=kernel.MS_BIND)
        kernel.seal(root + ROOTS)
    for path, text in system.ACCOUNTS.items():
        _write(root + path, text)
    for path in system.DEVICES:
        _write(root + path, "")
        kernel.mount(path, root + path, flags=kernel.MS_BIND)
    links = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "shm": f"{FOLDER}/shm"}
    for name, target in links.items():
        os.symlink(target, f"{root}/dev/{name}")
    for name in ("tmp", "workspace"):
        if not os.path.exists(f"{root}/{name}"):  # something in it may be readable, and then it is a folder
            os.symlink(f"{FOLDER}/{name}", f"{root}/{name}")
    for name in ("proc", FOLDER.lstrip("/")):
        os.mkdir(f"{root}/{name}")
    kernel.mount("proc", f"{root}/proc", "proc", flags=kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.enter_root(root)
    kernel.mount("root", "/", flags=kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID)


def _show(root: str, path: str) -> None:
    """Make a part of the system visible at its usual place."""
    if os.path.islink(path):
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(os.readlink(path), root + path)
        return
    if os.path.isdir(path):
        os.makedirs(root + path, exist_ok=True)
    else:
        _write(root + path, "")
    kernel.mount(path, root + path, flags=kernel.MS_BIND | kernel.MS_REC)
    kernel.seal(root + path)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
