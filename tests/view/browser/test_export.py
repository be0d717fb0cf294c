"""The page as one file from disk: no server, no requests, the same views and the same filters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

FILTERS = [
    "reward < 0.5 and tool_calls > 1",
    "not (reward == 1 or failure is not null)",
    "0.2 < reward <= 0.8",
    "task in [1, 3, 5] and correct == true",
    'kind contains "O" or extracted_answer == "12"',
    "kind not in ['motion', \"series\"]",
    "`checks.units` == 1 and checks.numeric != true",
    "failure == null and tokens >= 4e2",
    'failure in ["timeout", "rate_limited"]',
    "format_score > reward",
    'kind < "motion"',
    "expected_answer > 3",
]
BROKEN = [
    "reward <",
    "reward < 0.5 and",
    "(task == 1",
    "reward = 1",
    "task in []",
    'kind == "open',
    "1 2",
    "nosuch == 1",
    "not",
]


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


def test_filters_of_an_exported_page_mean_what_they_mean_to_the_server(page: Any, exported: Path, one_run: str) -> None:
    page.go(f"{exported.as_uri()}#view=table")
    for text in FILTERS:
        with urlopen(f"{one_run}api/rollouts?limit=1&filter={quote(text)}") as answer:
            expected = json.load(answer)["total"]
        page.fill("#filter-box", text)
        page.wait(f"decodeURIComponent(location.hash).replaceAll('+', ' ').endsWith({json.dumps(text)})", text)
        noun = "rollout" if expected == 1 else "rollouts"
        page.wait(
            f"document.querySelector('.count').innerText === '{expected} {noun}'", f"{expected} rollouts of {text}"
        )


def test_filters_that_cannot_be_read_are_refused_at_the_same_character(page: Any, exported: Path, one_run: str) -> None:
    page.go(f"{exported.as_uri()}#view=table")
    page.wait("document.querySelector('.count') !== null")
    for text in BROKEN:
        page.fill("#filter-box", text)
        page.wait(
            f"document.querySelector('.filter-problem code')?.innerText.trim() === {json.dumps(text.strip())}", text
        )
        before = page.evaluate("document.querySelector('.filter-problem mark').previousSibling?.textContent ?? ''")
        assert len(before) == refused_at(one_run, text), text


def refused_at(address: str, text: str) -> int:
    """The character at which the server gives up."""
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{address}api/rollouts?limit=1&filter={quote(text)}")
    with refused.value as answer:
        return int(json.load(answer)["position"])


def test_search_and_sort_work_without_a_server(page: Any, exported: Path) -> None:
    page.go(f"{exported.as_uri()}#view=table&search=rectangle&sort=-tokens")
    page.wait("document.querySelectorAll('a.row mark').length > 0")
    tokens = page.evaluate("[...document.querySelectorAll('a.row')].map((row) => Number(row.children[5].innerText))")
    known = [value for value in tokens if value is not None]
    assert known == sorted(known, reverse=True)
