"""The viewer in a terminal, driven by keys."""

import pytest
from textual.widgets import DataTable, Input, Static

from nemo_gym.errors import ConfigError
from nemo_gym.view.overview import overview_numbers
from nemo_gym.view.selection import Query, select
from nemo_gym.view.tui import TranscriptScreen, ViewerApp


@pytest.fixture
def app(write, record, failure, library) -> ViewerApp:
    write(
        "run.jsonl",
        [record(0, number, float(number != 3), question=f"How\x1b[31m far is {number}?") for number in range(6)],
    )
    path = write("run_failures.jsonl", [failure(0, 7)])
    return ViewerApp(library(path.with_name("run.jsonl")))


def status(app: ViewerApp) -> str:
    return str(app.screen_stack[0].query_one("#status", Static).render())


def transcript(app: ViewerApp) -> str:
    return str(app.screen.query_one("#transcript", Static).render())


async def test_the_table_shows_all_rows(app):
    async with app.run_test() as pilot:
        await pilot.pause()
        table = app.query_one(DataTable)
        assert table.row_count == 7
        assert "run.jsonl: 7 rows" in status(app)
        cells = [str(cell) for cell in table.get_row_at(0)]
        assert cells[:4] == ["0", "0", "math", "1"]
        assert "\x1b" not in cells[-1]


async def test_a_filter_is_typed_and_applied(app):
    async with app.run_test() as pilot:
        await pilot.press("slash")
        assert isinstance(app.focused, Input)
        await pilot.press(*"reward<1", "enter")
        await pilot.pause()
        assert app.query_one(DataTable).row_count == 1
        assert isinstance(app.focused, DataTable)


async def test_a_wrong_filter_is_explained_and_changes_nothing(app):
    async with app.run_test() as pilot:
        await pilot.press("slash", *"rewrad<1", "enter")
        await pilot.pause()
        assert "Did you mean: 'reward'?" in status(app)
        assert app.query_one(DataTable).row_count == 7
        await pilot.press("escape")
        assert isinstance(app.focused, DataTable)


async def test_a_rollout_is_opened_and_left(app):
    async with app.run_test() as pilot:
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, TranscriptScreen)
        assert "0.0 · 1 of 7" in transcript(app)
        assert "far is 0?" in transcript(app)
        await pilot.press("j")
        assert "far is 1?" in transcript(app)
        await pilot.press("f")
        assert "far is 3?" in transcript(app)
        await pilot.press("k")
        assert "far is 2?" in transcript(app)
        await pilot.press("escape")
        await pilot.pause()
        assert app.query_one(DataTable).cursor_row == 2


async def test_times_of_a_run_and_of_a_rollout_are_a_key_away(write, record, steps, library):
    path = write("run.jsonl", [record(task, 0, question=f"How far is {task}?") for task in range(3)])
    write("run_steps.jsonl", [steps(task, 0, at=task) for task in range(2)])
    app = ViewerApp(library(path))
    async with app.run_test(size=(120, 50)) as pilot:
        await pilot.press("t")
        await pilot.pause()
        assert "2 attempts, 2 completed" in str(app.screen.query_one("#timing", Static).render())
        await pilot.press("escape", "enter")
        await pilot.pause()
        await pilot.press("t")
        assert "  judge judge" in transcript(app)
        await pilot.press("j", "j")
        assert "run_steps.jsonl has no steps of this rollout" in transcript(app)
        await pilot.press("t")
        assert "How far is 2?" in transcript(app)


async def test_keys_move_and_sort(app):
    async with app.run_test() as pilot:
        await pilot.press("j", "j", "k")
        assert app.query_one(DataTable).cursor_row == 1
        await pilot.press("f")
        assert app.query_one(DataTable).cursor_row == 3
        await pilot.press("s")
        assert "by reward" in status(app)
        assert [str(cell) for cell in app.query_one(DataTable).get_row_at(0)][1] == "3"


async def test_new_rows_wait_until_they_are_asked_for(app, write, record):
    async with app.run_test() as pilot:
        await pilot.press("j")
        write("run.jsonl", [record(5, 5)], append=True)
        app._library.index_all()
        app._look()
        assert "1 new, r shows them" in status(app)
        assert app.query_one(DataTable).row_count == 7
        await pilot.press("r")
        await pilot.pause()
        assert app.query_one(DataTable).row_count == 8
        assert app.query_one(DataTable).cursor_row == 1


async def test_a_long_table_is_loaded_as_one_scrolls(write, record, library):
    app = ViewerApp(
        library(write("run.jsonl", [record(number, 0, 1.0) for number in range(450)] + [record(450, 0, 0.0)]))
    )
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.query_one(DataTable).row_count == 200
        await pilot.press("f")
        await pilot.pause()
        assert app.query_one(DataTable).row_count == 451
        assert app.query_one(DataTable).cursor_row == 450


def test_a_wrong_filter_on_the_command_line_ends_the_command(write, record, library):
    with pytest.raises(ConfigError, match="no column 'x'"):
        ViewerApp(library(write("run.jsonl", [record()])), "x < 1")


async def test_the_last_line_has_the_numbers_of_the_overview(write, record, library):
    rows = [record(task, n, (task - n) / 4) for task in range(5) for n in range(3)]
    found = library(write("run.jsonl", rows))
    for text in ("", "reward > -0.3"):
        numbers = overview_numbers(select(found.snapshot(), Query(filter=text)), whole=False)
        app = ViewerApp(found, text)
        async with app.run_test() as pilot:
            await pilot.pause()
            assert f"mean reward {numbers['mean_reward']:.3f}" in status(app)
            assert f"pass@1 {numbers['pass_at_k'][0]['value']:.3f}" in status(app)


async def test_a_rollout_nested_without_end_is_opened(write, record, library):
    deep: object = 1
    for _ in range(900):
        deep = [deep]
    row = record()
    row["response"]["output"] = [
        {"type": "function_call", "name": "f", "arguments": "[" * 1500 + "]" * 1500, "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": {"deep": deep}},
        [deep],
    ]
    app = ViewerApp(library(write("run.jsonl", [row])))
    async with app.run_test() as pilot:
        await pilot.press("enter")
        await pilot.pause()
        assert "[[[[[[" in transcript(app)
