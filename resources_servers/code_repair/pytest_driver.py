"""Runs tests inside a sandbox and reports how each ended, as JSON on standard output. It imports nothing of the project.

The request comes as JSON on standard input: ``roots`` (folders to import from), ``paths`` (test files or tests), and
``trace`` (whether to report which functions of ``roots`` each test calls). A test is named without the values of its
parameters; it fails if it fails for any of them. The tests themselves can write neither here nor to standard output.
"""

import json
import os
import sys

MOST_TEXT = 400


def run_tests(request, report):
    """Run the tests and write the report to an open file."""
    folder = os.getcwd()
    roots = [os.path.join(folder, root) for root in request["roots"]]
    sys.path[:0] = roots + [folder]
    import pytest

    class Recorder:
        def __init__(self):
            self.outcomes, self.messages, self.calls, self.current = {}, {}, {"": set()}, ""
            if request["trace"]:
                sys.setprofile(self.watch)

        def watch(self, frame, event, argument):
            if event == "call":
                code = frame.f_code
                if code.co_filename.startswith(folder):
                    self.calls[self.current].add((os.path.relpath(code.co_filename, folder), code.co_firstlineno))

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item):
            self.current = item.nodeid.split("[", 1)[0]
            self.calls.setdefault(self.current, set())
            try:
                return (yield)
            finally:
                self.current = ""

        def pytest_runtest_logreport(self, report):
            name = report.nodeid.split("[", 1)[0]
            before = self.outcomes.get(name)
            if report.failed:
                self.outcomes[name] = "failed"
                crash = getattr(report.longrepr, "reprcrash", None)
                text = crash.message if crash else str(report.longrepr)
                self.messages.setdefault(name, text[:MOST_TEXT])
            elif report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
                self.outcomes[name] = before or "passed"

        def pytest_collectreport(self, report):
            if report.failed:
                self.outcomes[report.nodeid] = "failed"
                self.messages[report.nodeid] = str(report.longrepr)[-MOST_TEXT:]

    options = ["-q", "-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    recorder = Recorder()
    code = pytest.main([*options, *request["paths"]], plugins=[recorder])
    sys.setprofile(None)
    calls = {name: sorted(found) for name, found in recorder.calls.items()} if request["trace"] else {}
    found = {"code": int(code), "outcomes": recorder.outcomes, "messages": recorder.messages, "calls": calls}
    report.write(json.dumps(found))
    report.flush()


def main():
    request = json.loads(sys.stdin.read())
    report = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    sys.path.insert(0, request["pytest"])
    run_tests(request, report)
    os._exit(0)  # threads that tests left behind must not hold up the verdict


main()
