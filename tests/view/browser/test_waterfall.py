"""Times on the page: the waterfall of a rollout, the times of a run, by pointer and by keyboard, with and without a
server."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Ask = Callable[[str, str], Any]
LINES = "document.querySelectorAll('.step-line')"
FOCUSED = f"[...{LINES}].indexOf(document.activeElement)"


def test_a_waterfall_can_be_read_by_eye_and_by_keyboard(page: Any, one_run: str, ask: Ask) -> None:
    slow = ask(one_run, "timing")["slowest"][0]["id"]
    steps = ask(one_run, f"rollout/{slow}")["timing"]["steps"]
    page.go(f"{one_run}#view=timing")
    page.click("table a", "Task")
    page.wait(f"{LINES}.length === {len(steps)}")
    assert page.count(".step-retry") == sum(len(step.get("retries", [])) for step in steps)
    widths = page.evaluate("[...document.querySelectorAll('.step-wait')].map((one) => one.clientWidth)")
    assert [width > 0 for width in widths] == ["waited" in step for step in steps]
    assert sum("tok/s" in text for text in page.texts(".step-rate")) == sum("tokens_out" in step for step in steps)
    assert page.evaluate("document.querySelectorAll('.step-line[tabindex=\"0\"]').length") == 1
    page.evaluate(f"{LINES}[0].focus({{ focusVisible: true }})")
    page.press("ArrowDown")
    page.wait(f"{FOCUSED} === 1")
    assert "tokens a second" in page.evaluate("document.activeElement.ariaLabel")
    assert page.evaluate("getComputedStyle(document.activeElement.querySelector('.step-tip')).display") == "block"
    page.press("End")
    page.wait(f"{FOCUSED} === {len(steps) - 1}")


def test_the_times_of_a_run_are_the_servers(page: Any, one_run: str, ask: Ask) -> None:
    told = ask(one_run, "timing")
    page.go(f"{one_run}#view=timing")
    page.wait("document.querySelectorAll('.area-fill').length === 2")
    names, rows = page.look(".share-name", ".times tbody tr")
    assert names[: len(told["shares"])] == [each["name"] for each in told["shares"] if each["share"] >= 0.001]
    assert len(rows) == len(told["steps"])
    page.click(".choice button", "By server")
    page.wait(f"document.querySelectorAll('.times tbody tr').length === {len(told['servers'])}")
    assert page.texts(".times tbody th") == [each["server"] for each in told["servers"]]
    page.go(one_run)
    page.click(".panel a", "All times")
    page.see("How long calls took")


@pytest.fixture(scope="module")
def hostile(make: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose steps are full of markup, and one rollout with ten thousand of them."""
    path = tmp_path_factory.mktemp("hostile") / "run.jsonl"
    markup = "<img src=x onerror='window.taken=1'><script>window.taken=1</script>"
    records = [make.rollout(task, 0) for task in range(2)]
    found = [make.steps_of(record) for record in records]
    for step in found[0]["steps"]:
        step |= {"server": markup, "tool": markup, "waited_for": markup, "finish": markup}
        step["retries"] = [{"at": 0, "failed": markup}]
    found[1]["steps"] = [
        {"kind": "tool", "tool": f"t{n % 20}_{'x' * 300}", "start": n, "duration": 1e9} for n in range(10_000)
    ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    path.with_name("run_steps.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in found))
    return path


def walk(page: Any, address: str) -> None:
    page.go(f"{address}#view=timing")
    page.wait("document.querySelectorAll('.share-list li').length > 0")
    page.go(f"{address}#view=table&rollout=0.0&tab=timing")
    page.wait(f"{LINES}.length > 2")
    page.go(f"{address}#view=table&rollout=0.1&tab=timing")
    page.see("Show more of 10,000 steps")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.count(".step-line") < 1000
    page.click(".fold-toggle", "Show more")
    page.wait(f"{LINES}.length > 1000")
    assert page.count("main img, main script") == 0
    assert page.evaluate("window.taken === undefined")


def test_hostile_names_and_numbers_break_nothing(page: Any, hostile: Path, serve: Any) -> None:
    walk(page, serve(hostile))


def test_an_exported_page_has_the_same_times(page: Any, hostile: Path, export: Any) -> None:
    walk(page, export(hostile.with_name("page.html"), hostile).as_uri())


def test_a_run_without_steps_says_so(page: Any, two_runs: str) -> None:
    page.go(f"{two_runs}#view=timing&run=1")
    page.see("there is no tuned_steps.jsonl")
    page.go(f"{two_runs}#view=table&rollout=1.f0")
    page.go(f"{two_runs}#view=table&rollout=0.f0&tab=timing")
    page.see("baseline_steps.jsonl has no steps of this rollout", ".waterfall")
