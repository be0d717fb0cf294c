"""Overview, table and groups in a real browser."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

Ask = Callable[[str, str], Any]


def rows(page: Any) -> int:
    """How many rollouts the table says there are, once it has settled."""
    settled = "document.querySelector('.grid, .notice') !== null && document.querySelector('.grid.stale') === null"
    count = page.wait(f"{settled} && document.querySelector('.table-bar .count').innerText")
    return int(count.split()[0].replace(",", ""))


def test_the_overview_shows_the_numbers_of_the_server(page: Any, one_run: str, ask: Ask) -> None:
    page.go(one_run)
    page.see("Mean reward")
    told = ask(one_run, "overview")
    figures = page.texts(".figure")
    assert f"{told['mean_reward']:.3f}" in figures[0]
    assert f"{told['interval'][0]:.3f} to {told['interval'][1]:.3f}" in figures[0]
    assert f"{told['pass_at_k'][0]['value']:.3f}" in figures[1]
    assert "43" in figures[2]
    assert "of 60 planned" in figures[2]
    assert figures[3].split()[:2] == ["Failed", "5"]
    page.wait("document.querySelector('.chart canvas') !== null", "the scatter plot")
    assert page.count(".bars li") == len(told["failed"])


def test_a_bar_of_the_histogram_leads_to_its_rollouts(page: Any, one_run: str) -> None:
    page.go(one_run)
    page.wait("document.querySelectorAll('.bin.pick').length > 1")
    page.click(".bin.pick rect.bar")
    page.wait("document.querySelectorAll('a.row').length > 0")
    assert "view=table&filter=reward >= 0 and reward < 0.05" in page.place()
    assert {text.split()[0] for text in page.texts("a.row")} == {"0"}


def test_a_bar_of_the_histogram_can_be_chosen_by_keyboard(page: Any, one_run: str) -> None:
    page.go(one_run)
    page.wait("document.querySelectorAll('.bin.pick').length > 1")
    page.evaluate("document.querySelector('.bin.pick').focus()")
    page.press("Enter")
    page.wait("document.querySelectorAll('a.row').length > 0")
    assert "view=table&filter=reward >= 0 and reward < 0.05" in page.place()


def test_a_file_without_rollouts_is_not_a_filter_without_matches(page: Any, serve: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    page.go(serve(tmp_path / "empty.jsonl"))
    for view in ("overview", "table", "groups"):
        page.show(f"view={view}")
        page.see("No rollouts yet", "main")
    page.show("view=table&filter=reward > 5")
    page.see("No rollout matches", "main")


def test_the_axes_of_the_scatter_plot_are_the_readers_choice(page: Any, one_run: str) -> None:
    page.go(one_run)
    page.see("Reward against tokens")
    page.evaluate(
        "((box) => { box.value = 'turns'; box.dispatchEvent(new Event('change', {bubbles: true})); })"
        "(document.querySelector('.aside select'))"
    )
    page.see("Reward against turns")
    assert "x=turns" in page.place()


def test_a_failure_class_leads_to_its_rollouts(page: Any, one_run: str) -> None:
    page.go(one_run)
    page.click(".bars a")
    page.wait("document.querySelectorAll('a.row').length > 0")
    assert 'failure == "' in page.place()
    assert all("failed" in text for text in page.texts("a.row"))


def test_a_filter_narrows_the_table_and_stays_in_the_address(page: Any, one_run: str, ask: Ask) -> None:
    page.go(f"{one_run}#view=table")
    assert rows(page) == 48
    page.fill("#filter-box", "reward == 1 and tool_calls > 1")
    page.wait("location.hash.includes('filter')")
    expected = ask(one_run, "rollouts?filter=reward%20%3D%3D%201%20and%20tool_calls%20%3E%201")["total"]
    page.wait(f"document.querySelector('.table-bar .count').innerText.startsWith('{expected} ')")
    address = page.evaluate("location.href")
    page.go(address)
    assert rows(page) == expected
    assert page.evaluate("document.querySelector('#filter-box').value") == "reward == 1 and tool_calls > 1"


def test_a_filter_that_cannot_be_read_says_where_and_changes_nothing(page: Any, one_run: str) -> None:
    page.go(f"{one_run}#view=table")
    assert rows(page) == 48
    page.fill("#filter-box", "reward < and task")
    page.wait("document.querySelector('.filter-problem') !== null")
    assert page.text(".filter-problem mark") == "a"
    assert page.evaluate("document.querySelector('#filter-box').getAttribute('aria-invalid')") == "true"
    assert rows(page) == 48
    assert "filter" not in page.place()
    page.fill("#filter-box", "")
    page.wait("document.querySelector('.filter-problem') === null")


def test_what_is_typed_while_a_filter_is_applied_stays(page: Any, one_run: str) -> None:
    page.go(f"{one_run}#view=table")
    assert rows(page) == 48
    page.fill("#filter-box", "task == 1 ")
    page.wait("location.hash.includes('filter')")
    assert rows(page) == 4
    page.call("Input.insertText", text="or task == 2")
    page.press("Enter")
    page.wait("decodeURIComponent(location.hash).replaceAll('+', ' ').endsWith('filter=task == 1 or task == 2')")
    assert rows(page) == 8
    # An answer that comes late belongs to a filter that nobody wants any more.
    page.evaluate("""(() => {
        const ask = window.fetch;
        window.fetch = async (...asked) => {
            if (String(asked[0]).includes("task+%3D%3D+3")) await new Promise((go) => { window.answer = go; });
            return ask(...asked);
        };
    })()""")
    page.fill("#filter-box", "task == 3")
    page.wait("window.answer !== undefined")
    page.fill("#filter-box", "task < 1")
    page.wait("location.hash.endsWith('filter=task+%3C+1')")
    page.evaluate("window.answer()")
    page.show("view=groups&filter=task+%3C+1")
    assert page.evaluate("document.querySelector('#filter-box').value") == "task < 1"
    assert "filter=task < 1" in page.place()


def test_a_search_finds_words_of_prompts_and_tool_output_and_marks_them(page: Any, one_run: str, ask: Ask) -> None:
    page.go(f"{one_run}#view=table")
    assert rows(page) == 48
    page.fill("#search-box", "rectangle diag")
    page.wait("document.querySelectorAll('a.row mark').length > 0", "marked words")
    assert rows(page) == ask(one_run, "rollouts?search=rectangle+diag")["total"]
    assert page.text("a.row mark").lower() == "rectangle"
    assert "search=rectangle diag" in page.place()


def test_a_click_on_a_column_sorts_by_it_a_second_turns_it_a_third_lets_go(page: Any, one_run: str, ask: Ask) -> None:
    page.go(f"{one_run}#view=table")
    assert rows(page) == 48
    for expected in ("-tokens", "tokens", None):
        page.click(".head button", "tokens")
        wanted = f"sort={expected}" if expected else "view=table"
        page.wait(f"location.hash.endsWith({json.dumps(wanted)})")
        rows(page)
        first = ask(one_run, f"rollouts?limit=1&sort={expected or ''}")["rows"][0]["id"]
        page.wait(f"document.querySelector('a.row').dataset.id === {json.dumps(first)}")


def test_columns_are_chosen_and_kept_in_the_address(page: Any, one_run: str) -> None:
    page.go(f"{one_run}#view=table")
    assert rows(page) == 48
    page.click(".popover-frame > button")
    page.click(".popover label", "expected_answer")
    page.wait(
        "[...document.querySelectorAll('.head .cell')].some((cell) => cell.innerText.includes('expected answer'))"
    )
    assert "expected_answer" in page.place()
    page.press("Escape")
    page.wait("document.querySelector('.popover') === null")


def test_of_many_rows_only_those_in_sight_are_asked_for(page: Any, serve: Any, make: Any, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    with path.open("w") as file:
        file.writelines(
            f'{{"_ng_task_index": {n}, "_ng_rollout_index": 0, "reward": {n % 2}}}\n' for n in range(20_000)
        )
    address = serve(path)
    page.go(f"{address}#view=table")
    page.wait("document.querySelector('.count').innerText === '20,000 rollouts'")
    assert page.count("a.row") < 100
    page.forget()
    page.evaluate("(() => { const grid = document.querySelector('.grid'); grid.scrollTop = grid.scrollHeight; })()")
    page.wait("[...document.querySelectorAll('a.row')].some((row) => row.getAttribute('aria-rowindex') === '20001')")
    assert sum("api/rollouts" in url for url in page.requests) <= 3


def test_groups_show_the_repeats_of_a_task_side_by_side(page: Any, one_run: str, ask: Ask) -> None:
    page.go(f"{one_run}#view=groups")
    page.wait("document.querySelectorAll('.group-list .group').length === 12")
    group = ask(one_run, "groups?by=task&limit=1")["groups"][0]
    assert page.count(".group-list .group:first-child .chip") == group["count"] == 4
    page.click(".group-list .chip")
    page.see("Task 0", "h1")


def choose(page: Any, label: str, value: str) -> None:
    """Choose from the select with this label."""
    page.wait("document.querySelector('.group-list .group') !== null")
    page.evaluate(
        f"((box) => {{ box.value = {json.dumps(value)}; box.dispatchEvent(new Event('change', {{bubbles: true}})); }})"
        f"([...document.querySelectorAll('.select')].find((one) => one.innerText.startsWith({json.dumps(label)}))"
        ".querySelector('select'))"
    )


def test_a_group_opens_into_groups_of_a_second_column(page: Any, one_run: str, ask: Ask) -> None:
    page.go(f"{one_run}#view=groups&by=agent")
    choose(page, "then by", "turns")
    page.click(".inner-toggle", "by turns")
    [first] = ask(one_run, "groups?by=agent")["groups"][:1]
    inner = ask(one_run, f"groups?by=turns&filter={quote('agent == ' + json.dumps(first['key']))}")["groups"]
    page.wait(f"document.querySelectorAll('.inner-groups .group').length === {len(inner)}")
    page.click(".inner-groups .group-name")
    page.wait("document.querySelectorAll('a.row').length > 0")
    assert f"({'agent == ' + json.dumps(first['key'])}) and turns == " in page.place()


@pytest.mark.parametrize(
    ("by", "name"), [("agent", "word_problems_agent"), ("failure", "completed"), ("file", "baseline"), ("turns", "2")]
)
def test_groups_by_other_things(page: Any, one_run: str, by: str, name: str) -> None:
    page.go(f"{one_run}#view=groups")
    choose(page, "group by", by)
    page.see(name, ".group-list")
    page.click(".group-list .group-name", name)
    page.wait("document.querySelectorAll('a.row').length > 0")


def test_a_bar_of_the_histogram_adds_to_the_filter_and_shows_what_it_counts(page: Any, one_run: str, ask: Ask) -> None:
    page.go(f"{one_run}#view=overview&filter={quote('tool_calls >= 1')}")
    page.wait("document.querySelectorAll('.bin.pick').length > 0")
    found = ask(one_run, f"overview?filter={quote('tool_calls >= 1')}")["histogram"]
    first = next(number for number, count in enumerate(found["counts"]) if count)
    page.click(".bin.pick")
    page.wait("location.hash.includes('view=table')")
    assert page.place().split("filter=")[1].startswith("(tool_calls >= 1) and reward >= ")
    noun = "rollout" if found["counts"][first] == 1 else "rollouts"
    page.wait(f"document.querySelector('.count').innerText === '{found['counts'][first]} {noun}'")


def test_the_threshold_can_be_set_and_is_part_of_the_address(page: Any, one_run: str, ask: Ask) -> None:
    page.go(one_run)
    page.see("n = 12 tasks")
    for threshold in ("0.5", "-1"):
        page.fill(".threshold input", threshold)
        page.wait(f"location.hash.includes('threshold={threshold}')")
        value = ask(one_run, f"overview?threshold={threshold}")["pass_at_k"][0]["value"]
        page.see(f"{value:.3f}", ".figures .figure:nth-child(2)")
        page.see(f"reward ≥ {threshold}", ".figures")
    page.see("reward@k")


def test_runs_are_paired_by_what_tasks_ask_and_the_pairs_are_counted(page: Any, two_runs: str) -> None:
    page.go(f"{two_runs}#view=compare")
    page.see("12 pairs")
    page.go(f"{two_runs}#view=compare&pair=index")
    page.see("12 pairs")


def test_a_change_is_explained_by_field(page: Any, two_runs: str, ask: Ask) -> None:
    told = ask(two_runs, "fields?a=0&b=1&filter=task%20%3C%206")
    page.go(f"{two_runs}#view=compare&filter=task+%3C+6")
    page.see(told["fields"][0]["name"], ".fields-table")
    [table] = page.look(".fields-table tbody:first-of-type tr")[:1]
    largest = told["fields"][0]["values"][0]
    assert f"{abs(largest['contribution']):.3f}" in table[1]
    page.click(".fields-table tbody a")
    page.wait("document.querySelectorAll('a.row').length > 0")
    assert "(task < 6) and " in page.place()


def test_the_overview_says_what_the_reward_depends_on(page: Any, one_run: str, ask: Ask) -> None:
    told = ask(one_run, "fields")
    page.go(one_run)
    page.see("What the reward depends on")
    names, _ = page.look(".field-title th", "main")
    assert names[0].startswith(told["fields"][0]["name"])
    page.click(".fold-toggle", f"All {len(told['fields'])} columns")
    page.wait(f"document.querySelectorAll('.field-title').length === {len(told['fields'])}")
