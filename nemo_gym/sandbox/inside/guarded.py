"""Boxes without namespaces: Landlock protects the files, seccomp the rest, one process group holds all descendants.

These boxes are for machines that do not allow user namespaces, which includes most containers. Under root, every box
has its own user, so that it shares neither signals nor limits with other processes. The level ``none`` uses the same
boxes without any restriction and has to be requested by name.

Landlock needs neither privileges nor namespaces. Its rules are layered, and every layer must allow an access. The fork
server applies a layer with everything that any box may read; each program adds one that allows writing only to its own
folder.
"""

import ctypes
import itertools
import os
import resource
import signal
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from nemo_gym.sandbox.inside import kernel, seccomp, system
from nemo_gym.sandbox.inside.limits import MIB, SandboxLimits
from nemo_gym.sandbox.inside.trees import unpack_tree
from nemo_gym.sandbox.inside.world_start import StartedWorld, WorldStart

_FIRST_USER: Final = 0x70000000  # far above the ids that distributions and user databases give out
_MOST_USERS: Final = 1 << 28
_PR_SET_KEEPCAPS: Final = 8
_READ_ANYTHING: Final = 2  # CAP_DAC_READ_SEARCH
_SET_USER: Final = 7  # CAP_SETUID
# Of Landlock:
_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIRECTORY: Final = 1 << 3
_FIRST_RIGHTS: Final = (1 << 13) - 1
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14
_IOCTL_DEVICE: Final = 1 << 15
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIRECTORY
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_SCOPES: Final = 0b11  # abstract sockets and signals
_SIGNALS_SINCE: Final = 6
_RULE_PATH: Final = 1
_VERSION_FLAG: Final = 1


class GuardedLevel:
    """Makes boxes below a folder of the host."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.boxes: str = settings["folder"]
        self.readable: list[str] = settings["readable"]
        self.locked: bool = settings["level"] == "landlock"
        self._user = _spare_users() if self.locked else None
        if self._user is not None:
            os.chmod(self.boxes, 0o711)  # noqa: S103 - the users of the boxes pass through it, but can't list it
        self.reachable = _reachable(sys.base_prefix) and _reachable(self.boxes)
        if self.locked:
            self._check()
            hidden = list(map(os.path.realpath, settings["hidden"]))
            visible = system.visible_paths(map(os.path.realpath, self.readable), hidden)
            _restrict([*visible.whole, "/proc"], [self.boxes, *system.DEVICES], listed=visible.listed)
            self.filter = seccomp.assemble(kernel.architecture(), one_group=True)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)

    def fork(self, *, own_network: bool) -> int:
        """Fork the supervisor of a new box; returns 0 in it."""
        del own_network  # refused later, with a reason
        if self._user is not None:
            self.user = next(self._user)
        return os.fork()

    def box(self, limits: SandboxLimits) -> "GuardedBox":
        """Make the box that the calling process supervises."""
        del limits
        return GuardedBox(self, self.user if self._user is not None else None)

    def world(self, start: WorldStart, limits: SandboxLimits) -> StartedWorld:
        """Make a world for the calling process: a box whose folder holds everything that can be written."""
        if start.root is not None or start.loopback or os.path.isabs(start.workdir):
            raise ValueError("without namespaces, a world has no root, no network and no absolute folder of its own")
        box = self.box(limits)
        try:
            self._fill(box, start, limits)
        except BaseException:
            box.remove()
            raise
        return StartedWorld(box, os.path.join(box.folder, start.workdir))

    def _fill(self, box: "GuardedBox", start: WorldStart, limits: SandboxLimits) -> None:
        """Unpack in a confined process, so that the archive reaches no further than the world."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                box.confine(limits)
                for archive in start.archives:
                    with open(archive, "rb", closefd=False) as source:
                        unpack_tree(source, box.folder, most=limits.disk_mib * MIB)
                os.makedirs(os.path.join(box.folder, start.workdir), exist_ok=True)
                code = 0
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1] != 0:
            raise OSError("the snapshot could not be unpacked")

    def _check(self) -> None:
        known = _landlock_version()
        if known == 0:
            raise OSError("the kernel has no Landlock")
        if self._user is None and known < _SIGNALS_SINCE:
            raise OSError(f"Landlock version {known} does not hold back signals, and only root can do without")


class GuardedBox:
    """A box as seen by its supervisor."""

    def __init__(self, level: GuardedLevel, user: int | None) -> None:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        self.folder = os.path.join(level.boxes, str(os.getpid()))
        self.top: int | None = None  # of a world: its folder is all that it changes
        self._level = level
        self._user = user
        self._make_folder()

    def confine(self, limits: SandboxLimits) -> None:
        """Restrict the calling process, before it runs any untrusted code."""
        os.setsid()
        if not self._level.locked:
            return
        others = 0
        if self._user is None:
            others = _tasks_of(os.getuid())
        else:
            _become(self._user, blind=self._level.reachable)
        kernel.set_limit(resource.RLIMIT_NPROC, limits.processes + others)
        readable = [path for path in self._level.readable if not os.path.islink(path)]
        _restrict(readable, [self.folder, *system.DEVICES])
        seccomp.install(self._level.filter)  # last, because the filter forbids some of the calls above

    def processes(self) -> Sequence[str]:
        """The ids of all descendants, which are those in the session of one of our children."""
        own = os.getpid()
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # Orphans become our children, because we are their subreaper; the others are in a child's session.
            if int(fields[1]) == own or _is_child_session(int(fields[3]), own):
                found.append(pid)
        return found

    def end_processes(self, leader: int) -> None:
        """End the process group, and processes that left it, which only the level ``none`` allows."""
        for kill, target in ((os.killpg, leader), *((os.kill, child) for child in _children())):
            try:
                kill(target, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def over_disk(self, limits: SandboxLimits) -> bool:
        """Whether the folder exceeds its limit."""
        used = files = 0
        for entry in _entries(self.folder):
            files += 1
            used += entry.st_blocks * 512
        return used > limits.disk_mib * MIB or files > limits.disk_files

    def reset(self, limits: SandboxLimits) -> None:
        """Empty the folder and create it again."""
        del limits
        remove_folder(self.folder)
        self._make_folder()

    def remove(self) -> None:
        """Remove the folder of the box."""
        remove_folder(self.folder)

    def _make_folder(self) -> None:
        for path in (self.folder, os.path.join(self.folder, "tmp")):
            os.mkdir(path, 0o700)
            if self._user is not None:
                os.chown(path, self._user, self._user)


def remove_folder(folder: str) -> None:
    """Remove a folder of any depth and with any modes; inner folders are moved up, so that no path gets too long."""
    numbers = itertools.count()
    while names := os.listdir(folder):
        for name in names:
            path = os.path.join(folder, name)
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
                continue
            os.chmod(path, 0o700)  # a program may have taken away the rights to its own folders
            for inner in os.listdir(path):
                source = os.path.join(path, inner)
                if stat.S_ISDIR(os.lstat(source).st_mode):
                    os.chmod(source, 0o700)
                    os.rename(source, os.path.join(folder, f".{next(numbers)}.{os.path.basename(folder)}"))
                else:
                    os.unlink(source)
            os.rmdir(path)
    os.rmdir(folder)


def _spare_users() -> Iterator[int] | None:
    """An iterator over unused user ids; None if this process can't switch to other users.

    It starts at random, because other fork servers on this machine draw from the same ids.
    """
    with open("/proc/self/status", encoding="ascii") as file:
        capabilities = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    if os.geteuid() != 0 or not capabilities >> _SET_USER & 1:
        return None
    with open("/proc/self/uid_map", encoding="ascii") as file:
        first, _, count = map(int, file.readline().split())
    end = first + count - 2  # the highest ids are "nobody" and "invalid"
    start = min(_FIRST_USER, max(end - _MOST_USERS, end // 2))
    users = range(start, min(start + _MOST_USERS, end))
    if not users:  # a container that has only its own user
        return None
    skipped = int.from_bytes(os.urandom(8), "little") % len(users)
    return (users[number % len(users)] for number in itertools.count(skipped))


def _become(user: int, *, blind: bool) -> None:
    """Switch to an unprivileged user.

    If only root can reach the interpreter or the boxes, the capability to read any file stays; Landlock then limits
    which files that means.
    """
    keep = 0 if blind else 1 << _READ_ANYTHING
    kernel.prctl(_PR_SET_KEEPCAPS, 1)  # otherwise the change of user drops all capabilities
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kernel.drop_capabilities(keep)
    if keep:
        kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_RAISE, _READ_ANYTHING)


def _reachable(path: str) -> bool:
    parts = path.strip("/").split("/")
    folders = ["/" + "/".join(parts[: number + 1]) for number in range(len(parts))]
    return all(os.stat(folder).st_mode & stat.S_IXOTH for folder in folders)


def _tasks_of(user: int) -> int:
    """The number of threads of a user, all of which count towards the kernel's limit on processes."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = os.stat(f"/proc/{pid}/task")
        except FileNotFoundError:
            continue
        count += status.st_nlink - 2 if status.st_uid == user else 0
    return count


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


def _is_child_session(session: int, own: int) -> bool:
    try:
        with open(f"/proc/{session}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1]) == own
    except (FileNotFoundError, ProcessLookupError):
        return False


def _entries(folder: str) -> Iterator[os.stat_result]:
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            try:
                yield os.lstat(os.path.join(path, name))
            except OSError:
                continue


def _landlock_version() -> int:
    """The version of the kernel's Landlock interface; 0 if it has none."""
    try:
        return kernel.syscall("landlock", None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def _restrict(readable: Iterable[str], writable: Iterable[str], *, listed: Iterable[str] = ()) -> None:
    """Forbid access to all other files, and signals to outside processes where the kernel supports that."""
    known = _landlock_version()
    handled = _handled(known)
    attributes = handled.to_bytes(8, "little") + bytes(8)
    if known >= _SIGNALS_SINCE:
        attributes += _SCOPES.to_bytes(8, "little")
    ruleset = kernel.syscall("landlock", attributes, len(attributes), 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ & handled)
        for path in listed:
            _allow(ruleset, path, _READ_DIRECTORY)
        for path in writable:
            _allow(ruleset, path, handled & ~_IOCTL_DEVICE)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)  # required of unprivileged processes
        # The two other calls of Landlock have the next numbers: 1 adds a rule, 2 applies the rules.
        kernel.raw_syscall(kernel.NUMBERS[kernel.architecture()]["landlock"] + 2, ruleset, 0)
    finally:
        os.close(ruleset)


def _handled(known: int) -> int:
    rights = _FIRST_RIGHTS
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE)):
        rights |= right if known >= since else 0
    return rights


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # the path does not exist, so there is nothing to allow
    try:
        rights &= -1 if os.path.isdir(path) else _OF_FILES
        rule = ctypes.create_string_buffer(rights.to_bytes(8, "little") + folder.to_bytes(4, "little", signed=True), 12)
        number = kernel.NUMBERS[kernel.architecture()]["landlock"] + 1
        kernel.raw_syscall(number, ruleset, _RULE_PATH, rule, 0)
    finally:
        os.close(folder)
