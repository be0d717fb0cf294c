"""Runs tests inside a sandbox and reports how each ended, as JSON. It imports nothing of the project.

The request comes as JSON on standard input: ``roots`` (folders to import from), ``paths`` (test files or tests), and
``trace`` (whether to report which functions of ``roots`` each test calls). A test is named without the values of its
parameters; it fails if it fails for any of them. The report goes to the standard output that this process had at the
start, which the tests can't write to by accident.
"""

import importlib
import json
import os
import sys
from types import FrameType
from typing import Any, TextIO

MOST_TEXT = 400


class Recorder:
    """How the tests of one run ended."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.outcomes: dict[str, str] = {}
        self.messages: dict[str, str] = {}
        self.calls: dict[str, set[tuple[str, int]]] = {"": set()}
        self.current = ""

    def watch(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call of a function that is in the folder; for ``sys.setprofile``."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self.folder):
            self.calls[self.current].add((os.path.relpath(code.co_filename, self.folder), code.co_firstlineno))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.current = nodeid.split("[", 1)[0]
        self.calls.setdefault(self.current, set())

    def pytest_runtest_logfinish(self) -> None:
        """A test has ended, with its fixtures."""
        self.current = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One phase of one test has ended."""
        name = report.nodeid.split("[", 1)[0]
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._failed(name, crash.message if crash else str(report.longrepr))
        elif report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self.outcomes.setdefault(name, "passed")

    def pytest_collectreport(self, report: Any) -> None:
        """A file that can't be imported fails like a test."""
        if report.failed:
            self._failed(report.nodeid, str(report.longrepr)[-MOST_TEXT:])

    def _failed(self, name: str, message: str) -> None:
        self.outcomes[name] = "failed"
        self.messages.setdefault(name, message[:MOST_TEXT])


def run_tests(request: dict[str, Any], report: TextIO) -> None:
    """Run the tests and write the report."""
    folder = os.path.realpath(".")
    sys.path[:0] = [*(os.path.realpath(root) for root in request["roots"]), folder]
    pytest = importlib.import_module("pytest")  # only now is there a place to import it from
    recorder = Recorder(folder)
    options = ["-q", "-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    if request["trace"]:
        sys.setprofile(recorder.watch)
    code = pytest.main([*options, *request["paths"]], plugins=[recorder])
    sys.setprofile(None)
    calls = {name: sorted(found) for name, found in recorder.calls.items()} if request["trace"] else {}
    found = {"code": int(code), "outcomes": recorder.outcomes, "messages": recorder.messages, "calls": calls}
    report.write(json.dumps(found))
    report.flush()


def main() -> None:
    """Read the request, keep the standard output for the report, and give the tests none."""
    request = json.loads(sys.stdin.read())
    report = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    sys.path.insert(0, request["pytest"])
    run_tests(request, report)
    os._exit(0)  # threads that tests left behind must not hold up the verdict


if __name__ == "__main__":
    main()
