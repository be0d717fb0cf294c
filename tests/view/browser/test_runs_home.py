"""The home of runs in a real browser."""

from pathlib import Path
from typing import Any


def test_two_ticked_runs_are_compared(page: Any, serve: Any, runs: Path) -> None:
    page.go(serve(runs))
    page.see("baseline.jsonl", ".home-table")
    assert page.count(".home-table tbody tr") == 2
    page.click(".home-table tbody tr:nth-child(1) input")
    page.click(".home-table tbody tr:nth-child(2) input")
    page.click("a.button", "Compare 2 runs")
    page.wait("document.querySelectorAll('.run-task').length > 0")
    page.click(".top nav a", "Runs")
    page.see("baseline.jsonl", ".home-table")
    page.click(".home-table th a", "tuned.jsonl")
    page.see("Mean reward")
