"""The page as one file from disk: no server, no requests, the same views and the same filters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest


@pytest.fixture(scope="module")
def exported(runs: Path, export: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("export") / "page.html", runs / "baseline.jsonl")


def test_an_exported_page_shows_everything_without_a_request(page: Any, exported: Path) -> None:
    page.go(exported.as_uri())
    page.see("Mean reward")
    page.see("of 60 planned")
    page.press("2")
    page.wait("document.querySelectorAll('a.row').length > 10")
    page.click("a.row")
    page.wait("document.querySelector('.prose math, .call-box, .failure') !== null")
    page.press("5")
    page.wait("document.querySelectorAll('.share-list li').length > 3")
    page.press("3")
    page.wait("document.querySelectorAll('.group-list .group').length === 12")
    page.click(".group-list .chip")
    page.wait("document.querySelector('.repeats') !== null")
    page.press("c")
    page.wait("document.querySelectorAll('.pair.heads h1').length === 2")
    assert {url.partition("#")[0] for url in page.requests} <= {"about:blank", exported.as_uri()}


def test_a_filter_is_applied_or_refused_where_it_cannot_be_read(
    page: Any, exported: Path, one_run: str, ask: Callable[[str, str], Any]
) -> None:
    text = 'kind contains "O" and task in [1, 3]'
    expected = ask(one_run, f"rollouts?limit=1&filter={quote(text)}")["total"]
    page.go(f"{exported.as_uri()}#view=table")
    page.fill("#filter-box", text)
    page.wait(f"document.querySelector('.count')?.innerText.startsWith('{expected} rollout')", f"{expected} rollouts")
    page.fill("#filter-box", 'note == "😀" or reward =')
    page.wait("document.querySelector('.filter-problem') !== null")
    assert page.text(".filter-problem mark") == "="
    assert page.evaluate("document.querySelector('.filter-problem mark').previousSibling.textContent.length") == 23


def test_search_and_sort_work_without_a_server(page: Any, exported: Path) -> None:
    page.go(f"{exported.as_uri()}#view=table&search=rectangle&sort=-tokens")
    page.wait("document.querySelectorAll('a.row mark').length > 0")
    tokens = page.evaluate("[...document.querySelectorAll('a.row')].map((row) => Number(row.children[5].innerText))")
    known = [value for value in tokens if value is not None]
    assert known == sorted(known, reverse=True)
