"""Keyboard, narrow screens, themes and names of controls in a real browser."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Ask = Callable[[str, str], Any]


def test_the_keyboard_goes_everywhere(page: Any, one_run: str, ask: Ask) -> None:
    page.go(one_run)
    page.see("Mean reward")
    page.press("2")
    page.wait("document.querySelectorAll('a.row').length > 0")
    page.press("j")
    page.press("j")
    page.wait("document.querySelector('.row.current')?.getAttribute('aria-rowindex') === '3'")
    page.press("Enter")
    page.wait("document.querySelector('h1') !== null")
    start = page.place().split("rollout=")[1]
    detail = ask(one_run, f"rollout/{start}")
    for key, expected in (("j", detail["next"]), ("k", start), ("f", detail["next_failure"])):
        page.press(key)
        page.wait(f"document.querySelector('main').dataset.id === {json.dumps(expected)}")
    group = [chip["id"] for chip in ask(one_run, f"rollout/{expected}")["group"]]
    page.press("g")
    after = group[(group.index(expected) + 1) % len(group)]
    page.wait(f"document.querySelector('main').dataset.id === {json.dumps(after)}")
    page.press("Escape")
    page.wait("!location.hash.includes('rollout=')")
    page.press("/")
    page.wait("document.activeElement.id === 'filter-box'")


def test_help_opens_with_a_key_and_closes_again(page: Any, one_run: str) -> None:
    page.go(one_run)
    page.see("Mean reward")
    page.press("?")
    page.see("next rollout of the same task", "dialog[open]")
    page.press("Escape")
    page.wait("document.querySelector('dialog') === null")


def test_the_way_back_leads_to_where_the_reader_was(page: Any, one_run: str) -> None:
    page.resize(1280, 600)
    page.go(f"{one_run}#view=table")
    page.wait("document.querySelectorAll('a.row').length > 0")
    page.evaluate("document.querySelector('.grid').scrollTop = 660")
    page.click("a.row[aria-rowindex='28']")
    page.wait("document.querySelector('h1') !== null")
    page.evaluate("history.back()")
    page.wait("document.querySelector('.grid')?.scrollTop === 660")
    page.wait("document.querySelector('.row.current')?.getAttribute('aria-rowindex') === '28'")
    page.show("view=groups")
    page.wait("document.querySelectorAll('.group .chip').length > 0")
    page.evaluate("scrollTo(0, 80)")
    page.click(".group-list .group:nth-child(6) .chip")
    page.wait("document.querySelector('h1') !== null")
    page.evaluate("history.back()")
    page.wait("document.querySelectorAll('.group .chip').length > 0 && scrollY === 80")


# And what says that each is there.
VIEWS = {
    "view=overview": ".chart canvas",
    "view=table": "a.row",
    "view=groups": ".group .chip",
    "view=table&rollout=0.0": ".rollout .step",
    "view=compare&a=0.0&b=0.1": ".pair .step",
    "view=compare": ".run-task",
}


def test_nothing_is_wider_than_a_narrow_screen(page: Any, two_runs: str) -> None:
    page.resize(390, 844)
    page.go(two_runs)
    for view, part in VIEWS.items():
        page.show(view)
        page.wait(f"document.querySelector({json.dumps(part)}) !== null")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view


def test_a_row_of_a_narrow_screen_opens_its_rollout(page: Any, one_run: str) -> None:
    page.resize(390, 844)
    page.go(f"{one_run}#view=table")
    page.click("a.row")
    page.see("Task", "h1")


def test_light_and_dark_follow_the_system_until_the_reader_chooses(page: Any, one_run: str) -> None:
    shade = "getComputedStyle(document.documentElement).backgroundColor"
    page.theme("light")
    page.go(one_run)
    page.see("Mean reward")
    light = page.evaluate(shade)
    page.theme("dark")
    page.wait(f"{shade} !== {json.dumps(light)}")
    page.press("t")
    page.wait(f"{shade} === {json.dumps(light)}")
    page.go(one_run)
    assert page.evaluate(shade) == light


def test_a_place_that_changes_while_the_page_appears_is_shown(page: Any, one_run: str) -> None:
    # At the first sign of the page, before it can have noticed anything.
    page.call(
        "Page.addScriptToEvaluateOnNewDocument",
        source="""new MutationObserver((_, observer) => {
            if (!document.querySelector("#app")?.children.length) return;
            observer.disconnect();
            location.hash = "#view=groups";
        }).observe(document, { childList: true, subtree: true })""",
    )
    page.go(f"{one_run}#view=table")
    page.wait("document.querySelector('.group-list') !== null")


def test_every_control_has_a_name_and_every_view_one_main_part(page: Any, two_runs: str) -> None:
    nameless = (
        "[...document.querySelectorAll('button, a[href], input, select')].filter((one) => !(one.textContent.trim() || "
        "one.getAttribute('aria-label') || one.labels?.length || one.title)).map((one) => one.outerHTML)"
    )
    page.go(two_runs)
    for view, part in VIEWS.items():
        page.show(view)
        page.wait(f"document.querySelector({json.dumps(part)}) !== null")
        assert page.evaluate(nameless) == []
        assert page.count("main") == 1


@pytest.mark.parametrize(("key", "box"), [("/", "filter"), ("s", "search")])
@pytest.mark.parametrize("place", ["view=table", "view=table&rollout=0.0"])
def test_keys_right_after_the_one_that_opens_a_box_go_into_it(
    page: Any, one_run: str, key: str, box: str, place: str
) -> None:
    page.go(f"{one_run}#{place}")
    page.wait("document.querySelector('main') !== null && document.querySelector('[aria-busy=true]') === null")
    keys = [{"key": each, "bubbles": True, "cancelable": True} for each in (key, "1", "t")]
    page.evaluate(f"""{json.dumps(keys)}.forEach((each) => {{
        const target = document.activeElement ?? document.body;
        const event = new KeyboardEvent("keydown", each);
        const typed = target.dispatchEvent(event);
        if (typed && target.matches("input")) {{
            target.value += each.key;
            target.dispatchEvent(new Event("input", {{ bubbles: true }}));
        }}
    }})""")
    page.wait(f"document.activeElement.id === '{box}-box'")
    page.wait(f"document.querySelector('#{box}-box').value === '1t'")
    assert "view=table" in page.place()
