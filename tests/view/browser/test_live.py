"""A file that grows while it is being viewed."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


class Growing:
    """A rollout file that a collector is writing, and the viewer's address."""

    def __init__(self, path: Path, make: ModuleType) -> None:
        self.path, self._make, self._next = path, make, 0
        self.grow(60)

    def grow(self, count: int) -> None:
        """Append rollouts; the last line in two pieces, as a slow disk would."""
        with self.path.open("a") as file:
            for _ in range(count):
                line = json.dumps(self._make.rollout(self._next // 4, self._next % 4)) + "\n"
                self._next += 1
                file.write(line[:100])
                file.flush()
                file.write(line[100:])


@pytest.fixture
def growing(tmp_path: Path, make: ModuleType) -> Growing:
    return Growing(tmp_path / "growing.jsonl", make)


def test_new_rows_are_announced_and_come_when_asked_for(page: Any, serve: Any, growing: Growing) -> None:
    page.go(f"{serve(growing.path)}#view=table")
    page.wait("document.querySelector('.count').innerText === '60 rollouts'")
    page.evaluate("document.querySelector('.grid').scrollTop = 33 * 20")
    in_sight = (
        "JSON.stringify([document.querySelector('.grid').scrollTop, "
        "...[...document.querySelectorAll('a.row')].map((row) => row.dataset.id)])"
    )
    page.wait("[...document.querySelectorAll('a.row')].some((row) => row.dataset.id === '0.40')")
    before = page.evaluate(in_sight)
    growing.grow(7)
    page.see("7 new rows", ".arrivals")
    assert page.evaluate(in_sight) == before
    growing.grow(1)
    page.see("8 new rows", ".arrivals")
    page.click(".arrivals")
    page.wait("document.querySelector('.count').innerText === '68 rollouts'")
    page.wait("document.querySelector('.arrivals') === null")
    assert page.evaluate("document.querySelector('.grid').scrollTop") == 33 * 20


def test_new_rows_that_the_filter_hides_are_no_news(page: Any, serve: Any, growing: Growing) -> None:
    page.go(f"{serve(growing.path)}#view=table&filter=task != 15")
    page.wait("document.querySelector('.count').innerText === '60 rollouts'")
    growing.grow(4)  # all of task 15
    page.see("64 rows", ".following")
    growing.grow(1)
    page.wait("document.querySelector('.arrivals')?.innerText.startsWith('1 new row ')", "the one of task 16")
    assert page.text(".count") == "60 rollouts"


def test_the_overview_keeps_up_by_itself_and_survives_a_new_file(page: Any, serve: Any, growing: Growing) -> None:
    page.go(serve(growing.path))
    page.see("60\ncompleted", ".figures")
    growing.grow(3)
    page.see("63\ncompleted", ".figures")
    growing.path.write_text("")
    page.see("No rollouts yet", "main")
    growing.grow(2)
    page.see("2\ncompleted", ".figures")


def test_a_running_collection_says_how_long_the_rest_will_take(page: Any, serve: Any, growing: Growing) -> None:
    plan = growing.path.with_name("growing_materialized_inputs.jsonl")
    plan.write_text("".join(f'{{"_ng_task_index": {n // 4}, "_ng_rollout_index": {n % 4}}}\n' for n in range(4000)))
    page.go(serve(growing.path))
    page.see("of 4,000 planned", ".figures")

    def says_when() -> list[list[str]] | None:
        growing.grow(1)
        figures, live = page.look(".figures", ".live")
        return [figures, live] if "Time left" in figures[0] else None

    [figures], live = page.until(says_when, "the time that is left")
    assert "rollouts a" in figures
    assert live == ["live"]
