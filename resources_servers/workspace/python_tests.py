"""Runs tests of Python files in a world, each in a process of its own. Standard library only: it is sent there as text.

What is tested runs in the same process as its test, so it could claim anything. But it never runs in this process,
which alone has the list of tests, the standard output and the word that the host expects before the verdicts.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
import unittest

NOT_DUMPABLE = 4, 0
MAX_REASON = 2000


def main() -> None:
    """Read a request from standard input, write the verdicts to standard output."""
    ctypes.CDLL(None).prctl(*NOT_DUMPABLE, 0, 0, 0)  # no child opens our descriptors below /proc
    request = json.load(sys.stdin)
    verdicts = {name: run_apart(name, request["each_s"]) for name in request["names"]}
    sys.stdout.write(json.dumps({"word": request["word"], "verdicts": verdicts}))


def run_apart(name: str, seconds: float) -> str | None:
    """Why a test failed, or None if it passed."""
    ours, theirs = os.pipe()
    word = os.urandom(16)
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        become_test(name, theirs, word)
    os.close(theirs)
    said = read_for(ours, seconds)
    os.close(ours)
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:  # it has no group of its own yet, or none any more
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    os.waitpid(pid, 0)
    if said is None:
        return "takes too long"
    if said.startswith(word):
        return said[len(word) :].decode("utf-8", "replace") or None
    return "ends before the test does"


def read_for(descriptor: int, seconds: float) -> bytes | None:
    """All that is written until the end, or None if that takes longer."""
    until = time.monotonic() + seconds
    said = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        data = os.read(descriptor, 65536)
        if not data or len(said) > 2 * MAX_REASON:
            return said
        said += data


def become_test(name: str, report: int, word: bytes) -> None:
    """Run one test and report how it ended."""
    try:
        os.setpgid(0, 0)
    except OSError:  # some sandboxes do not let processes leave their group
        pass
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    try:
        reason = run_test(name)
    except BaseException:
        reason = traceback.format_exc()
    os.write(report, word + reason[-MAX_REASON:].encode("utf-8", "replace"))
    os._exit(0)


def run_test(name: str) -> str:
    """Load the file of a test and run it; an empty text if it passes."""
    path, *parts = name.split("::")
    sys.path[:0] = [os.getcwd(), os.path.dirname(os.path.abspath(path))]
    with open(path, encoding="utf-8") as file:
        source = file.read()
    module = type(sys)(os.path.basename(path)[:-3].replace(".", "_"))
    module.__file__ = os.path.abspath(path)
    sys.modules[module.__name__] = module
    exec(compile(source, path, "exec"), module.__dict__)
    if len(parts) == 1:
        getattr(module, parts[0])()
        return ""
    case = getattr(module, parts[0])
    if not (isinstance(case, type) and issubclass(case, unittest.TestCase)):
        getattr(case(), parts[1])()
        return ""
    result = unittest.TestResult()
    unittest.TestSuite([case(parts[1])]).run(result)
    return "".join(text for _, text in (*result.errors, *result.failures)) or (
        "" if result.testsRun == 1 and result.wasSuccessful() and not result.skipped else "was not run"
    )


if __name__ == "__main__":
    main()
