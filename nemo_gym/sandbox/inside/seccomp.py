"""The filter of system calls, assembled by hand for the kernel's packet-filter machine.

It refuses calls that would widen the kernel's attack surface or reach beyond the box: namespaces, mounts, tracing,
sockets, keys, shared memory that no limit counts, other processes' limits. Calls newer than the table behave as if the
kernel did not have them. Everything else is allowed, so that ordinary programs run.
"""

import ctypes
import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from nemo_gym.sandbox.inside import kernel

_AUDIT_ARCHITECTURE: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_HIGHEST: Final = 450
_COLUMN: Final = {"x86_64": 0, "aarch64": 1}

# Name: numbers on x86_64 and aarch64; -1 where the call does not exist.
_REFUSED: Final = {
    # modules, machine, clock
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, -1), "ioperm": (173, -1),
    "settimeofday": (164, 170), "adjtimex": (159, 171), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "vhangup": (153, 58), "personality": (135, 92), "uselib": (134, -1), "modify_ldt": (154, -1),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "fsopen": (430, 430), "fsmount": (432, 432), "fsconfig": (431, 431), "fspick": (433, 433),
    "move_mount": (429, 429), "open_tree": (428, 428), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "ioprio_set": (251, 30), "move_pages": (279, 239), "migrate_pages": (256, 238),
    # subsystems with a history of vulnerabilities
    "perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "seccomp": (317, 277), "lookup_dcookie": (212, 18), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450),
    # keys, network, memory that outlives its process or escapes the limits
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "socket": (41, 198),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semctl": (66, 191),
    "semop": (65, 193), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183), "memfd_create": (319, 279), "memfd_secret": (447, 447),
}  # fmt: skip
# Without a process namespace, all descendants are ended through their process group, so none may leave it.
_LEAVING_THE_GROUP: Final = {"setsid": (112, 157), "setpgid": (109, 154)}
# Landlock does not control owners, modes and times. These calls do nothing and report success, because too many
# ordinary programs (cp, tar, shutil) fail without them.
_PRETENDED: Final = {
    "chown": (92, -1), "lchown": (94, -1), "fchown": (93, 55), "fchownat": (260, 54), "chmod": (90, -1),
    "fchmod": (91, 52), "fchmodat": (268, 53), "utime": (132, -1), "utimes": (235, -1), "utimensat": (280, 88),
    "futimesat": (261, -1), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
# Calls that take a process id as their first argument: 0, the caller, is the only one allowed.
_OF_THE_CALLER: Final = {
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274),
}  # fmt: skip
# Takes a kind (0: a process) and an id.
_SETPRIORITY: Final = (141, 140)
_CLONE: Final = (56, 220)
_CLONE3: Final = (435, 435)
_SOCKETPAIR: Final = (53, 199)
_IOCTL: Final = (16, 29)
_NEW_NAMESPACES: Final = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWCGROUP
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWTIME
)
_AF_UNIX: Final = 1
_AF_INET: Final = 2
_AF_INET6: Final = 10
# Both type into a terminal as if its user had.
_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C

_LOAD: Final = 0x20  # a 32-bit word of the call's description
_EQUAL: Final = 0x15
_GREATER: Final = 0x25
_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_KILL: Final = 0x80000000
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16
_SECOND_ARGUMENT_AT: Final = 24

_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of the filter; jumps are relative to the next one."""

    code: int
    operand: int
    if_true: int = 0
    if_false: int = 0

    def encode(self) -> bytes:
        """The kernel's ``sock_filter``."""
        head = self.code.to_bytes(2, "little") + bytes((self.if_true, self.if_false))
        return head + self.operand.to_bytes(4, "little")


def assemble(architecture: str, *, one_group: bool, sockets: bool = False) -> bytes:
    """The filter for a box. ``one_group`` is for boxes without namespaces, ``sockets`` for those with a network.

    Sockets are those of the internet and of files; in a network namespace of its own, neither leads out of the box.
    """
    column = _COLUMN[architecture]
    refused = {**_REFUSED, **(_LEAVING_THE_GROUP if one_group else {})}
    judged = [_SOCKETPAIR[column]]
    if sockets:
        judged.append(refused.pop("socket")[column])
    program = [
        # The numbers below mean other calls on another architecture, such as 32-bit x86 on the same machine.
        Instruction(_LOAD, _ARCHITECTURE_AT),
        Instruction(_EQUAL, _AUDIT_ARCHITECTURE[architecture], if_true=1),
        Instruction(_RETURN, _KILL),
        Instruction(_LOAD, _NUMBER_AT),
        Instruction(_GREATER, _HIGHEST, if_false=1),
        _refuse(errno.ENOSYS),
        *_returning(_CLONE3[column], errno.ENOSYS),  # the C library then uses clone, whose flags can be checked
        *_each(refused.values(), column, errno.EPERM),
        *(_each(_PRETENDED.values(), column, 0) if one_group else ()),
        *_judging(_CLONE[column], _FIRST_ARGUMENT_AT, Instruction(_ANY_BIT, _NEW_NAMESPACES, if_false=1)),
        *_allowing(judged[:1], (_AF_UNIX,)),
        *_allowing(judged[1:], (_AF_UNIX, _AF_INET, _AF_INET6)),
        *_judging(_IOCTL[column], _SECOND_ARGUMENT_AT, Instruction(_EQUAL, _TIOCSTI, if_false=1)),
        *_judging(_IOCTL[column], _SECOND_ARGUMENT_AT, Instruction(_EQUAL, _TIOCLINUX, if_false=1)),
    ]
    for numbers in (*_OF_THE_CALLER.values(), _SETPRIORITY):
        program += _judging(numbers[column], _FIRST_ARGUMENT_AT, Instruction(_EQUAL, 0, if_true=1))
    program += _judging(_SETPRIORITY[column], _SECOND_ARGUMENT_AT, Instruction(_EQUAL, 0, if_true=1))
    program.append(Instruction(_RETURN, _ALLOW))
    return b"".join(instruction.encode() for instruction in program)


def install(program: bytes) -> None:
    """Apply a filter permanently to this thread and everything that it starts."""
    buffer = ctypes.create_string_buffer(program, len(program))
    length = len(program) // 8
    description = length.to_bytes(8, "little") + ctypes.addressof(buffer).to_bytes(8, "little")
    holder = ctypes.create_string_buffer(description, len(description))
    kernel.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(holder))


def _refuse(number: int) -> Instruction:
    return Instruction(_RETURN, _ERRNO | number)


def _returning(call: int, number: int) -> list[Instruction]:
    return [Instruction(_EQUAL, call, if_false=1), _refuse(number)]


def _each(calls: Iterable[tuple[int, int]], column: int, number: int) -> list[Instruction]:
    return [step for numbers in calls if numbers[column] >= 0 for step in _returning(numbers[column], number)]


def _judging(call: int, argument: int, test: Instruction) -> list[Instruction]:
    """Refuse a call unless the test jumps over the refusal; then reload the call's number for the rules that follow."""
    return [
        Instruction(_EQUAL, call, if_false=4),
        Instruction(_LOAD, argument),
        test,
        _refuse(errno.EPERM),
        Instruction(_LOAD, _NUMBER_AT),
    ]


def _allowing(calls: Iterable[int], values: Sequence[int]) -> list[Instruction]:
    """Refuse calls whose first argument is not one of these values."""
    tests = [Instruction(_EQUAL, value, if_true=len(values) - place) for place, value in enumerate(values)]
    return [
        step
        for call in calls
        for step in (
            Instruction(_EQUAL, call, if_false=3 + len(tests)),
            Instruction(_LOAD, _FIRST_ARGUMENT_AT),
            *tests,
            _refuse(errno.EPERM),
            Instruction(_LOAD, _NUMBER_AT),
        )
    ]
