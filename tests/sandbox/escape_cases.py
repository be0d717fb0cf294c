# ruff: noqa: E501 - programs are easier to read in long lines than in many
"""Ways out of a box and ways to harm what is around it, each as a program that tries.

Run by ``test_escapes.py`` for every level of isolation, and as a program of its own (``escape_cases.py LEVEL``) under
another user, for which the standard library has to be enough.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from nemo_gym.sandbox.boxes import Runner
from nemo_gym.sandbox.inside.limits import ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.jail import Jail
from nemo_gym.sandbox.worlds import WorldSpec

SECRET = "the-secret-of-the-host"
LIMITS = SandboxLimits(
    cpu_s=2, wall_s=20, memory_mib=160, processes=12, file_mib=2, disk_mib=8, disk_files=500, output_kib=64
)
ENDED = frozenset(ProgramEnding)

# The vocabulary of the programs below: what should not work is tried, and tells on itself if it does.
ATTEMPTS = '''
import ctypes, os, socket, subprocess, sys, signal, time, threading, resource, mmap
libc = ctypes.CDLL(None, use_errno=True)

def tries(what, action):
    try:
        value = action()
    except (OSError, ValueError, RuntimeError, subprocess.SubprocessError, OverflowError):
        return
    print("ESCAPED", what, repr(value)[:200], flush=True)

def call(number, *arguments):
    """A raw system call that must be refused."""
    ctypes.set_errno(0)
    result = libc.syscall(number, *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result >= 0 or ctypes.get_errno() not in (1, 38):  # EPERM, ENOSYS
        print("ESCAPED system call", number, result, ctypes.get_errno(), flush=True)
'''


@dataclass(frozen=True)
class Case:
    """A program, how it may end, and limits of its own."""

    name: str
    program: str
    endings: frozenset[ProgramEnding] = frozenset({ProgramEnding.EXITED})
    limits: SandboxLimits = LIMITS
    stdin: bytes = b""


def attempt(name: str, *lines: str) -> Case:
    return Case(name, "from attempts import *\n" + "\n".join(lines))


def bomb(name: str, program: str, *endings: ProgramEnding, **limits: float) -> Case:
    bounded = replace(LIMITS, **{"wall_s": 2.0, "cpu_s": 1.0, **limits})
    return Case(name, "from attempts import *\n" + program, frozenset(endings) or ENDED, bounded)


BOMBS = [
    bomb("a fork bomb", "while True:\n    try: os.fork()\n    except OSError: pass", wall_s=1.0, cpu_s=0.5),
    bomb(
        "more processes than allowed",
        "n = 0\ntry:\n    while n < 200:\n        if os.fork() == 0: time.sleep(60)\n        n += 1\n"
        "except OSError: pass\nif n > 12: print('ESCAPED', n)",
        ProgramEnding.EXITED,
        wall_s=10,
    ),
    bomb(
        "more threads than allowed",
        "n = 0\ntry:\n    while n < 200:\n        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "        n += 1\nexcept RuntimeError: pass\nif n > 12: print('ESCAPED', n)\nos._exit(0)",
        ProgramEnding.EXITED,
        wall_s=10,
    ),
    bomb("a memory bomb", "a = []\nwhile True: a.append(bytearray(1 << 20))", ProgramEnding.EXITED, ProgramEnding.MEMORY, wall_s=10),
    bomb(
        "a memory bomb of many processes",
        "for _ in range(6):\n    if os.fork() == 0:\n        a = b'x' * (60 << 20)\n        time.sleep(60)\ntime.sleep(60)",
        ProgramEnding.MEMORY,
        wall_s=20,
        cpu_s=10,
    ),
    bomb(
        "a memory bomb of shared pages",
        "a = []\ntry:\n    while len(a) < 4000:\n        m = mmap.mmap(-1, 1 << 20); m[:] = b'x' * (1 << 20); a.append(m)\n"
        "    print('ESCAPED')\nexcept (OSError, MemoryError): pass",
        ProgramEnding.EXITED,
        ProgramEnding.MEMORY,
        wall_s=10,
    ),
    bomb(
        "a disk bomb of many files",
        "n = 0\ntry:\n    while n < 4000:\n        open(str(n), 'wb').write(b'x' * (1 << 20)); n += 1\n"
        "except OSError: os._exit(0)\nprint('ESCAPED', n)",
        ProgramEnding.EXITED,
        ProgramEnding.DISK,
        wall_s=20,
        cpu_s=10,
    ),
    bomb(
        "a bomb of empty files",
        "n = 0\ntry:\n    while n < 100_000:\n        open(str(n), 'w').close(); n += 1\n"
        "except OSError: os._exit(0)\ntime.sleep(15); print('ESCAPED', n)",
        ProgramEnding.EXITED,
        ProgramEnding.DISK,
        wall_s=20,
        cpu_s=20,
    ),
    bomb(
        "one huge file",
        "tries('write', lambda: [open('huge', 'ab').write(b'x' * (1 << 20)) for _ in range(4)])",
        ProgramEnding.EXITED,
    ),
    bomb("a huge file with holes", "f = open('f', 'wb')\ntries('hole', lambda: f.truncate(1 << 40))", ProgramEnding.EXITED),
    bomb("a flood of output", "while True: os.write(1, b'x' * 65536)", ProgramEnding.OUTPUT, wall_s=10, cpu_s=5),
    bomb("a flood of errors", "while True: os.write(2, b'x' * 65536)", ProgramEnding.OUTPUT, wall_s=10, cpu_s=5),
    bomb(
        "a flood by a child",
        "if os.fork() == 0:\n    while True: os.write(1, b'x' * 4096)\ntime.sleep(60)",
        ProgramEnding.OUTPUT,
        wall_s=20,
        cpu_s=10,
    ),
    bomb("a busy loop", "while True: pass", ProgramEnding.CPU_TIME, cpu_s=0.3, wall_s=20),
    bomb("a long sleep", "time.sleep(1000)", ProgramEnding.WALL_TIME, wall_s=0.3),
    bomb(
        "a loop that ignores signals",
        "for s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
        ProgramEnding.CPU_TIME,
        cpu_s=0.3,
        wall_s=20,
    ),
    bomb(
        "busy children one after the other",
        "while True:\n    p = os.fork()\n    if p == 0:\n        e = time.process_time() + .05\n"
        "        while time.process_time() < e: pass\n        os._exit(0)\n    os.waitpid(p, 0)",
        ProgramEnding.CPU_TIME,
        cpu_s=0.5,
        wall_s=20,
    ),
    bomb("open files without end", "a = []\nwhile True: a.append(open('/dev/null'))", ProgramEnding.EXITED),
    bomb("recursion without end", "def f(): f()\nsys.setrecursionlimit(1 << 30)\nf()", memory_mib=64),
    bomb(
        "a deep tree of folders",
        "for n in range(450):\n    os.mkdir('d' * 100); os.chdir('d' * 100)",
        ProgramEnding.EXITED,
        wall_s=20,
        cpu_s=10,
    ),
    bomb(
        "names and modes that are hard to remove",
        "os.mkdir(b'\\xff\\n'); os.mkdir('-rf'); open('-rf/ *', 'w'); os.mkdir('shut'); open('shut/x', 'w'); os.chmod('shut', 0)\n"
        "os.symlink('/', 'all'); os.mkfifo('pipe'); os.mkdir('none', 0)",
        ProgramEnding.EXITED,
    ),
]  # fmt: skip

PROCESSES = [
    attempt("signals to the parent", "for s in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):",
            "    try: os.kill(os.getppid(), s)", "    except OSError: pass", "print('alive')"),
    attempt("signals to the host", "tries('kill', lambda: os.kill(host, signal.SIGUSR1))",
            "tries('probe', lambda: os.kill(host, 0))"),
    attempt("signals to the host by descriptor", "fd = libc.syscall(434, host, 0)",
            "if fd >= 0: tries('pidfd', lambda: signal.pidfd_send_signal(fd, signal.SIGUSR1))"),
    attempt("signals to everybody", "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
            "try: os.kill(-1, signal.SIGUSR1)", "except OSError: pass"),
    attempt("the environment of the host", "import glob",
            "found = dict(os.environ)", "assert secret not in str(found)",
            "for p in glob.glob('/proc/*/environ'):",
            "    try: text = open(p, 'rb').read()", "    except OSError: continue",
            "    if secret.encode() in text: print('ESCAPED', p)"),
    attempt("the memory of the parent", "for p in (os.getppid(), host):",
            "    tries('mem', lambda: open(f'/proc/{p}/mem', 'r+b').read(0))",
            "    tries('fd', lambda: os.listdir(f'/proc/{p}/fd'))"),
    attempt("the root of other processes", "for p in (1, os.getppid(), host):",
            "    tries('root', lambda: os.listdir(f'/proc/{p}/root/'))", "    tries('cwd', lambda: os.listdir(f'/proc/{p}/cwd/'))"),
    attempt("tracing", "x = number['ptrace']", "call(x, 0, 0, 0, 0)", "call(x, 16, os.getppid(), 0, 0)", "call(x, 16, host, 0, 0)"),
    attempt("reading and writing other processes", "call(number['process_vm_readv'], host, None, 0, None, 0, 0)",
            "call(number['process_vm_writev'], os.getppid(), None, 0, None, 0, 0)", "call(438, 3, 1, 0)", "call(312, 1, host, 0, 0, 0)"),
    attempt("the limits of other processes",
            "tries('prlimit', lambda: resource.prlimit(host, resource.RLIMIT_NOFILE, (1, 1)))",
            "tries('prlimit', lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1)))"),
    attempt("higher limits", "for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):",
            "    tries('rlimit', lambda: resource.setrlimit(kind, (1 << 40, 1 << 40)))"),
    attempt("the priority of other processes", "tries('nice', lambda: os.setpriority(os.PRIO_PROCESS, host, 19))",
            "tries('user', lambda: os.setpriority(os.PRIO_USER, 0, 19))",
            "tries('affinity', lambda: os.sched_setaffinity(host, [0]))"),
    attempt("a daemon that outlives the program", "if os.fork() == 0:",
            "    try: os.setsid()", "    except OSError: pass", "    signal.signal(signal.SIGHUP, signal.SIG_IGN)",
            "    if os.fork() == 0:", "        os.execvp('sleep', ['sleep', marker])", "    os._exit(0)", "os.wait()"),
    attempt("a daemon by the shell", "subprocess.run(['sh', '-c', f'trap \"\" HUP TERM; sleep {marker} & sleep {marker} &'])"),
    attempt("open files of the host", "import fcntl", "for fd in range(3, 4096):", "    tries('descriptor', lambda: (fd, fcntl.fcntl(fd, fcntl.F_GETFD)))"),
    attempt("answers in the name of the supervisor", "for fd in range(3, 300):", "    tries('write', lambda: os.write(fd, b'\\x02\\0\\0\\0{}'))"),
    attempt("another box", "home = os.environ['HOME']",
            "neighbours = [p for p in (os.path.dirname(home), boxes) if p != '/' and not os.path.realpath(p).startswith(home)]",
            "for p in neighbours: tries('boxes', lambda: os.listdir(p))"),
]  # fmt: skip

FILES = [
    attempt("reading a file outside", "tries('read', lambda: open(outside + '/secret').read())"),
    attempt("listing a folder outside", "tries('list', lambda: os.listdir(outside))"),
    attempt("writing outside", "tries('write', lambda: open(outside + '/new', 'w'))", "tries('append', lambda: open(outside + '/secret', 'a'))",
            "tries('mkdir', lambda: os.mkdir(outside + '/folder'))"),
    attempt("removing and renaming outside", "tries('unlink', lambda: os.unlink(outside + '/secret'))",
            "tries('rename', lambda: os.rename(outside + '/secret', outside + '/moved'))",
            "tries('take', lambda: os.rename(outside + '/secret', 'mine'))"),
    attempt("truncating outside", "tries('truncate', lambda: os.truncate(outside + '/secret', 0))"),
    attempt("modes and times outside", "for f in (lambda: os.chmod(outside + '/secret', 0o600), lambda: os.utime(outside + '/secret', (1, 1))):",
            "    try: f()", "    except OSError: pass"),
    attempt("a symbolic link to the outside", "os.symlink(outside + '/secret', 'link')", "tries('link', lambda: open('link').read())",
            "os.symlink(outside, 'folder')", "tries('folder', lambda: os.listdir('folder'))"),
    attempt("a hard link to the outside", "tries('hard', lambda: os.link(outside + '/secret', 'hard'))"),
    attempt("up and out", "tries('up', lambda: open('../' * 40 + outside[1:] + '/secret').read())",
            "tries('self', lambda: open('/proc/self/root' + outside + '/secret').read())"),
    attempt("writing to the system", "for p in ('/', '/usr', '/etc', '/bin', '/lib', '/var', '/dev', '/proc', sys.base_prefix, os.__file__[:-5]):",
            "    tries('write ' + p, lambda: open(p + '/escape', 'w'))", "tries('python', lambda: open(os.__file__, 'a'))"),
    attempt("secrets of the system", "for p in ('/etc/shadow', '/root/.bash_history', '/root/.ssh', '/var/log', '/home', '/run', '/sys'):",
            "    tries(p, lambda: open(p).read() if os.path.isfile(p) else os.listdir(p))"),
    attempt("settings of the kernel", "for p in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/self/oom_score_adj_', '/proc/sys/vm/drop_caches'):",
            "    tries(p, lambda: open(p, 'w').write('1'))"),
    attempt("devices", "for p in ('/dev/mem', '/dev/kmem', '/proc/kcore', '/dev/kmsg', '/dev/sda', '/dev/vda', '/dev/fuse', '/dev/kvm', '/dev/tty', '/dev/ptmx'):",
            "    tries(p, lambda: open(p, 'rb').read(1))", "tries('mknod', lambda: os.mknod('disk', 0o60666, os.makedev(254, 0)))"),
    attempt("installed packages", "import importlib.util",
            "for name in ('pip', 'pydantic', 'omegaconf', 'resources_servers', 'setuptools'):",
            "    if importlib.util.find_spec(name): print('ESCAPED', name)"),
    attempt("the project", "tries('project', lambda: open(project + '/pyproject.toml').read(20))", "tries('list', lambda: os.listdir(project))"),
]  # fmt: skip

KERNEL = [
    attempt("sockets of every family", "for family in range(64):", "    for kind in (1, 2, 3, 5):",
            "        tries(f'socket {family} {kind}', lambda: socket.socket(family, kind))"),
    attempt("pairs of sockets of other families", "for family in range(2, 64): tries('pair', lambda: socket.socketpair(family))"),
    attempt("a server on the host", "tries('tcp', lambda: socket.create_connection(('127.0.0.1', port), 1))",
            "tries('name', lambda: socket.getaddrinfo('example.com', 80))"),
    attempt("sockets with a name", "for address in (outside + '/socket', '\\0' + abstract):",
            "    tries('unix', lambda: socket.socket(socket.AF_UNIX).connect(address))"),
    attempt("io_uring", "call(425, 8, ctypes.create_string_buffer(120))", "call(426, 0, 0, 0, 0, None, 0)"),
    attempt("mounts", "call(number['mount'], b'none', b'/tmp', b'tmpfs', 0, None)", "call(number['mount'], b'/', b'/tmp', b'', 4096, None)",
            "call(number['mount'], b'none', b'/', b'', 0x20 | 0x1000, None)"),
    attempt("unmounting", "call(number['umount2'], b'/proc', 2)", "call(number['umount2'], b'/box', 2)", "call(number['umount2'], b'/', 2)"),
    attempt("mounts by the newer calls", "call(430, b'tmpfs', 0)", "call(428, -100, b'/', 1)", "call(429, 0, b'', 0, b'', 0)", "call(442, -100, b'/', 0, None, 0)"),
    attempt("another root", "call(number['pivot_root'], b'.', b'.')", "tries('chroot', lambda: os.chroot('.'))"),
    attempt("new namespaces", "for flag in (0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x2000000):",
            "    call(number['unshare'], flag)", "    call(number['clone'], flag | 17, 0, 0, 0, 0)", "call(435, None, 0)"),
    attempt("the namespaces of others", "call(number['setns'], 0, 0)",
            "for p in (1, os.getppid(), host): tries('ns', lambda: os.open(f'/proc/{p}/ns/mnt', os.O_RDONLY))"),
    attempt("becoming root", "tries('uid', lambda: os.setuid(0))", "tries('gid', lambda: os.setgid(0))", "tries('groups', lambda: os.setgroups([0]))",
            "tries('all', lambda: os.setresuid(0, 0, 0))", "if os.geteuid() == 0: print('ESCAPED')"),
    attempt("programs with the setuid bit",
            "for line in (['su', 'root', '-c', 'id'], ['sudo', '-n', 'id'], ['mount', '-t', 'tmpfs', 'x', '/tmp'], ['passwd', '-d', 'root']):",
            "    try: done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)",
            "    except OSError: continue",
            "    if done.returncode == 0 or 'uid=0' in done.stdout: print('ESCAPED', line, done)"),
    attempt("a setuid program of one's own", "import shutil", "shutil.copyfile('/usr/bin/id', 'id')", "os.chmod('id', 0o4755)",
            "try: out = subprocess.run(['./id', '-u'], capture_output=True, text=True).stdout", "except OSError: out = ''",
            "if out.strip() == '0': print('ESCAPED', out)"),
    attempt("capabilities", "header = ctypes.create_string_buffer(b'\\x22\\x05\\x08\\x20' + bytes(4))", "data = ctypes.create_string_buffer(24)",
            "libc.syscall(number['capget'], header, data)", "import struct", "sets = struct.unpack('<6I', data.raw)",
            "if sets[0] & ~4 or sets[1] & ~4 or sets[3] or sets[4]: print('ESCAPED', sets)"),
    attempt("shared memory and queues of System V", "call(number['shmget'], 1, 4096, 0o1666)", "call(number['semget'], 1, 1, 0o1666)", "call(number['msgget'], 1, 0o1666)"),
    attempt("POSIX queues", "call(number['mq_open'], b'q', 0o102, 0o600, None)"),
    attempt("memory without a name", "tries('memfd', lambda: os.memfd_create('x'))", "call(447, 0)"),
    attempt("keys of the kernel", "call(number['keyctl'], 0, -3, 1)", "call(number['add_key'], b'user', b'x', b'y', 1, -3)", "call(number['request_key'], b'user', b'x', None, -3)"),
    attempt("machinery of the kernel", "call(number['bpf'], 0, None, 0)", "call(number['perf_event_open'], None, 0, -1, -1, 0)", "call(number['userfaultfd'], 0)",
            "call(number['fanotify_init'], 0, 0)", "call(number['seccomp'], 1, 0, None)"),
    attempt("the machine itself", "call(number['reboot'], 0, 0, 0, None)", "call(number['kexec_load'], 0, 0, None, 0)", "call(number['init_module'], None, 0, b'')",
            "call(number['swapoff'], b'/x')", "call(number['acct'], None)", "call(number['syslog'], 3, None, 0)"),
    attempt("name and clock of the machine", "tries('name', lambda: socket.sethostname('pwned'))", "tries('clock', lambda: time.clock_settime(0, 1))",
            "call(number['settimeofday'], None, None)"),
    attempt("file handles", "call(number['open_by_handle_at'], -100, None, 0)", "call(number['name_to_handle_at'], -100, b'/', None, None, 0)"),
    attempt("numbers beyond the table", "call(500, 0)", "call(1000, 0)", "call(0x40000000 + 41, 2, 1, 0)"),
    attempt("keystrokes for a terminal", "import fcntl", "for request in (0x5412, 0x541C):",
            "    try: fcntl.ioctl(0, request, b'x')", "    except OSError as error:",
            "        if error.errno != 1: print('ESCAPED', error)", "    else: print('ESCAPED')"),
    attempt("the filter in a new program",
            "code = 'import socket; socket.socket()'",
            "done = subprocess.run([os.path.join(os.environ['PATH'].split(':')[0], 'python3'), '-c', code], capture_output=True, text=True)",
            "if 'PermissionError' not in done.stderr: print('ESCAPED', done)"),
    attempt("privileges once given up", "libc.prctl(38, 0, 0, 0, 0)", "assert libc.prctl(39, 0, 0, 0, 0) == 1"),
    attempt("a crash of the interpreter", "print('held', flush=True)", "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))", "ctypes.string_at(0)"),
]  # fmt: skip

CASES = [*BOMBS, *PROCESSES, *FILES, *KERNEL]

_NUMBERS = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "mount": 165, "umount2": 166, "pivot_root": 155,
        "unshare": 272, "clone": 56, "setns": 308, "capget": 125, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240,
        "keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "fanotify_init": 300, "seccomp": 317, "reboot": 169, "kexec_load": 246, "init_module": 175, "swapoff": 168,
        "acct": 163, "syslog": 103, "settimeofday": 164, "open_by_handle_at": 304, "name_to_handle_at": 303,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "mount": 40, "umount2": 39, "pivot_root": 41,
        "unshare": 97, "clone": 220, "setns": 268, "capget": 90, "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180,
        "keyctl": 219, "add_key": 217, "request_key": 218, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
        "fanotify_init": 262, "seccomp": 277, "reboot": 142, "kexec_load": 104, "init_module": 105, "swapoff": 225,
        "acct": 89, "syslog": 116, "settimeofday": 170, "open_by_handle_at": 265, "name_to_handle_at": 264,
    },
}  # fmt: skip


class OutsideWorld:
    """What a program must not reach: a folder, servers, a secret, this process."""

    def __init__(self, folder: Path) -> None:
        self.outside = folder
        self.marker = f"{9000 + os.getpid()}.5"
        self.abstract = f"sandbox-test-{os.getpid()}"
        os.environ["SANDBOX_TEST_SECRET"] = SECRET
        folder.chmod(0o777)
        (folder / "secret").write_text(SECRET)
        (folder / "secret").chmod(0o666)
        self.before = self._state()
        self._servers = [socket.create_server(("127.0.0.1", 0))]
        for address in (str(folder / "socket"), f"\0{self.abstract}"):
            server = socket.socket(socket.AF_UNIX)
            server.bind(address)
            server.listen()
            self._servers.append(server)
        self.entries = sorted(os.listdir(folder))

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def program(self, case: Case) -> str:
        known = {
            "host": os.getpid(),
            "outside": str(self.outside),
            "secret": SECRET,
            "marker": self.marker,
            "abstract": self.abstract,
            "port": self._servers[0].getsockname()[1],
            "project": str(Path(__file__).parents[2]),
            "boxes": tempfile.gettempdir(),
            "number": _NUMBERS[os.uname().machine],
        }
        return "".join(f"{name} = {value!r}\n" for name, value in known.items()) + case.program

    def problems(self, case: Case, result: Result) -> list[str]:
        """What a program achieved that it should not have."""
        found = []
        if b"ESCAPED" in result.stdout or SECRET.encode() in result.stdout:
            found.append(result.text)
        if result.ending not in case.endings:
            found.append(f"ended by {result.ending}: {result.stderr.decode()}")
        if self._state() != self.before or sorted(os.listdir(self.outside)) != self.entries:
            found.append("something outside has changed")
        if left := list(self._left()):
            found.append(f"still running: {left}")
        if case.endings == {ProgramEnding.EXITED} and b"Traceback" in result.stderr and case not in BOMBS:
            found.append(result.stderr.decode())
        return found

    def _state(self) -> tuple[str, int, float]:
        status = (self.outside / "secret").stat()
        return (self.outside / "secret").read_text(), status.st_mode, status.st_mtime

    def _left(self) -> Iterable[str]:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if line == b"sleep\0" + self.marker.encode() + b"\0":
                yield pid


# In a world, more can be written than in a box, all of it the world's own; where commands write is judged by hand.
_JUDGED_ANEW = {
    "writing to the system",
    "another box",
    "a crash of the interpreter",
    "secrets of the system",
    "installed packages",
}
WORLD_CASES = [
    *(case for case in CASES if case.name not in _JUDGED_ANEW),
    attempt("secrets of the system outside the world", "for p in ('/etc/shadow', '/root/.bash_history', '/root/.ssh', '/var/log', '/run', '/sys'):",
            "    tries(p, lambda: open(p).read() if os.path.isfile(p) else os.listdir(p))"),
    # In a world the interpreter looks for them; without namespaces their names can be listed, but not read.
    attempt("importing installed packages", "for name in ('pip', 'pydantic', 'omegaconf', 'resources_servers', 'setuptools'):",
            "    try: __import__(name); print('ESCAPED', name)", "    except (ImportError, OSError): pass"),
    attempt("writing to the programs of the system", "for p in ('/usr', '/bin', '/lib', '/proc', sys.base_prefix, os.__file__[:-5]):",
            "    tries('write ' + p, lambda: open(p + '/escape', 'w'))", "tries('python', lambda: open(os.__file__, 'a'))"),
    attempt("the supervisor of the world", "for p in (1, os.getppid()):",
            "    for name in ('environ', 'maps', 'mem', 'auxv'): tries(name, lambda: open(f'/proc/{p}/{name}', 'rb').read(1))",
            "    tries('root', lambda: os.listdir(f'/proc/{p}/root/'))", "    tries('fd', lambda: os.listdir(f'/proc/{p}/fd'))"),
    attempt("the roots of other worlds", "tries('roots', lambda: os.listdir('/.roots'))",
            "for p in ('/box', '/root/.cache', '/var/lib/containers'): tries(p, lambda: [os.listdir(p)] * bool(os.listdir(p)) or os.listdir('/none'))"),
    attempt("mounts over what is visible", "call(number['mount'], b'none', b'/usr', b'tmpfs', 0, None)",
            "call(number['umount2'], b'/usr', 2)", "call(number['mount'], b'none', b'/', b'', 0x20 | 0x1000, None)"),
]  # fmt: skip


async def judge_in_worlds(runner: Runner, world: OutsideWorld, cases: Iterable[Case]) -> dict[str, list[str]]:
    """Run each case as a command of a new world, and say what is wrong."""
    found = {}
    for case in cases:
        files = {"attempts.py": ATTEMPTS.encode(), "program.py": world.program(case).encode()}
        async with runner.world(WorldSpec(limits=case.limits, files=files)) as opened:
            result = await opened.exec(["python3", "program.py"], stdin=case.stdin)
        # What a program leaves running ends with its world.
        if problems := world.problems(case, result):
            found[case.name] = problems
    return found


async def judge_all(level: str, folder: Path) -> dict[str, list[str]]:
    """Run all cases that may depend on the user, at a level, and say what is wrong."""
    world = OutsideWorld(folder)
    jail = Jail(level, modules={"attempts": ATTEMPTS})
    found = {}
    try:
        for case in (*BOMBS[:4], *PROCESSES, *FILES, *KERNEL):
            result = await jail.run(world.program(case), stdin=case.stdin, limits=case.limits)
            if problems := world.problems(case, result):
                found[case.name] = problems
        calm = [case for case in WORLD_CASES if case not in BOMBS]
        found |= {f"{name}, in a world": text for name, text in (await judge_in_worlds(jail, world, calm)).items()}
    finally:
        await jail.aclose()
        world.close()
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        sys.stdout.write(json.dumps(asyncio.run(judge_all(sys.argv[1], Path(name)))))
