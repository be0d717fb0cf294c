"""Runs commands and measures their cost: CPU time, resident memory, time until ready."""

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

HERE = Path(__file__).parent
ROOT = HERE.parent
BIN = Path(sys.executable).parent
TICK = os.sysconf("SC_CLK_TCK")
# Without bytecode every import compiles again, which is not what users pay.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Cost:
    """What a finished command cost, its children included."""

    cpu_s: float
    wall_s: float
    peak_mb: float
    output: str


def run(command: list[str], *, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> Cost:
    """Run a command to its end; a failing one ends the benchmark with its output."""
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=cwd, env=ENVIRONMENT | (environment or {}), stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - started
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{text[-3000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, text)


@contextmanager
def background(
    command: list[str], *, environment: dict[str, str] | None = None, cwd: Path = ROOT, patience_s: float = 10
) -> Iterator[subprocess.Popen[str]]:
    """Run a command while the context lasts, its output in a pipe. Kill it if it takes too long to stop."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=ENVIRONMENT | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(2)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


def cpu_of(pid: int) -> float:
    """CPU seconds that a running process has used, its finished children included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICK


def memory_mb(pid: int) -> float:
    """Resident memory of a running process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str, *, seconds: float = 20) -> None:
    """Wait until something replies."""
    opener = build_opener(ProxyHandler({}))
    deadline = time.monotonic() + seconds
    while True:
        try:
            with opener.open(url, timeout=1):
                return
        except (URLError, OSError) as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"nothing replies at {url}: {error}") from None
            time.sleep(0.01)


def raise_open_files_limit() -> None:
    """Many connections need many file descriptors; children inherit the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65_535, hard), hard))


@contextmanager
def behind_tls(base_url: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The endpoint again at an https:// address, and the certificate to trust: a process of its own ends the TLS."""
    certificate, key, port = folder / "certificate.pem", folder / "key.pem", free_port()
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    names = ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    run([*command, *names, "-keyout", str(key), "-out", str(certificate)])
    upstream = base_url.removeprefix("http://").partition("/")[0]
    relay = [sys.executable, str(HERE / "tls_relay.py"), str(port), upstream, str(certificate), str(key)]
    with background(relay):
        wait_for_port(port)
        yield f"https://localhost:{port}/v1", certificate


def wait_for_port(port: int, *, seconds: float = 20) -> None:
    """Wait until something listens."""
    deadline = time.monotonic() + seconds
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing listens on port {port}")
        time.sleep(0.01)


@contextmanager
def mock_model(**settings: str) -> Iterator[str]:
    """The mock endpoint, running; its settings are the MOCK_… variables in lower case."""
    port = free_port()
    environment = {"MOCK_PORT": str(port)} | {f"MOCK_{key.upper()}": value for key, value in settings.items()}
    with background([sys.executable, str(HERE / "mock_model.py")], environment=environment):
        wait_for(f"http://127.0.0.1:{port}/stats")
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def mock_engine(turns: int = 1) -> Iterator[str]:
    """The mock inference server that returns tokens, running; conversations have this many turns."""
    port = free_port()
    with background([sys.executable, str(HERE / "mock_engine.py"), str(port), str(turns)]):
        wait_for(f"http://127.0.0.1:{port}/stats")
        yield f"http://127.0.0.1:{port}/v1"
