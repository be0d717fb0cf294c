"""Rollouts in a terminal: a table, a filter, the transcript. Needs Textual, an extra, so it is imported only when used.

Only rows that were scrolled to are loaded. New rows do not move the table while it is being read: the last line says
how many there are, and ``r`` shows them.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from nemo_gym.errors import ConfigError
from nemo_gym.steps.timing_text import run_lines, waterfall_lines
from nemo_gym.view.index.reader import StaleIndexError
from nemo_gym.view.library import Library
from nemo_gym.view.listing import id_of, line_of, read_listed, read_record
from nemo_gym.view.overview import overview_numbers
from nemo_gym.view.rollout_files import decode_row
from nemo_gym.view.selection import Query, Selection, is_failure, select
from nemo_gym.view.timing import rollout_timing, run_timing
from nemo_gym.view.transcript import heading, render_transcript

Shown = Literal["transcript", "times"]  # of a rollout
COLUMNS: Final = ("task", "rollout", "agent", "reward", "failure", "turns", "tool_calls", "tokens", "question")
SORTS: Final = ("", "reward", "-reward", "-tokens", "-turns", "task")
_WINDOW: Final = 200  # rows that are loaded at a time
_WIDEST: Final = 60
_LOOK_S: Final = 1.0


class TranscriptScreen(Screen[None]):
    """One rollout. ``step`` moves to another one and returns its record, or None if there is none."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "back"),
        Binding("j,right", "move(1)", "next"),
        Binding("k,left", "move(-1)", "previous"),
        Binding("f", "next_failure", "next failure"),
        Binding("t", "timing", "times"),
    ]

    def __init__(self, show: Callable[[int | None, Shown], str | None]) -> None:
        super().__init__()
        self._show = show
        self._shown: Shown = "transcript"

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="transcript", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._update(0)

    def action_move(self, step: int) -> None:
        self._update(step)

    def action_next_failure(self) -> None:
        self._update(None)

    def action_timing(self) -> None:
        self._shown = "times" if self._shown == "transcript" else "transcript"
        self._update(0)

    def _update(self, step: int | None) -> None:
        text = self._show(step, self._shown)
        if text is not None:
            self.query_one("#transcript", Static).update(Text(text))
            self.query_one(VerticalScroll).scroll_home(animate=False)


class TimingScreen(Screen[None]):
    """Where the time of a run went."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,t", "app.pop_screen", "back")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Text(self._text), id="timing")
        yield Footer()


class ViewerApp(App[None]):
    """The table, from which rollouts are opened."""

    CSS = """
    #status { height: 1; color: $text-muted; }
    #status.error { color: $error; }
    DataTable { height: 1fr; }
    """
    AUTO_FOCUS = "DataTable"  # from the beginning, or keys that are pressed early would end up in the filter
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter"),
        Binding("j", "down", "next", show=False),
        Binding("k", "up", "previous", show=False),
        Binding("f", "next_failure", "next failure"),
        Binding("s", "sort", "sort"),
        Binding("t", "timing", "times"),
        Binding("r", "reload", "show new"),
        Binding("escape", "table", "table", show=False),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, library: Library, filter_text: str = "") -> None:
        super().__init__()
        self._library = library
        self._query = Query(filter=filter_text)
        self._selection: Selection = select(library.snapshot(), self._query)  # an invalid filter ends the command here
        self._numbers = ""
        self._loaded = 0

    def compose(self) -> ComposeResult:
        yield Input(value=self._query.filter, placeholder="filter: reward < 0.5 and tool_calls > 3", id="filter")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="status", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._table.add_columns(*COLUMNS)
        self._fill()
        self._table.focus()
        self.set_interval(_LOOK_S, self._look)

    @property
    def _table(self) -> DataTable[Text]:
        return self.screen_stack[0].query_one(DataTable)

    # ---- rows ----------------------------------------------------------------------------------------------------

    def _select(self, query: Query) -> None:
        """Show the rows that a query selects; a mistake in it is reported and changes nothing."""
        try:
            self._selection = select(self._library.snapshot(), query)
        except ConfigError as error:
            self._say(f"{error}{f' — {error.hint}' if error.hint else ''}", error=True)
            return
        except StaleIndexError:
            return
        self._query = query
        self._fill()
        self._table.focus()

    def _fill(self) -> None:
        self._table.clear()
        self._numbers = _numbers(self._selection)
        self._loaded = 0
        self._load_more()
        self._show_status()

    def _load_more(self) -> None:
        codes = self._selection.rows[self._loaded : self._loaded + _WINDOW].tolist()
        try:
            rows = read_listed(self._selection.snapshot, codes, COLUMNS)
        except StaleIndexError:
            self._say("the file was replaced: r shows the new one", error=True)
            return
        for row in rows:
            self._table.add_row(*(_cell(row[name]) for name in COLUMNS))
        self._loaded += len(rows)

    @on(DataTable.RowHighlighted)
    def _near_the_end(self, event: DataTable.RowHighlighted) -> None:
        if event.cursor_row >= self._loaded - _WINDOW // 4 and self._loaded < len(self._selection):
            self._load_more()

    def _go_to(self, place: int) -> None:
        while self._loaded <= place < len(self._selection):
            self._load_more()
        self._table.move_cursor(row=place)

    # ---- what keys do --------------------------------------------------------------------------------------------

    @on(Input.Submitted)
    def _filtered(self, event: Input.Submitted) -> None:
        self._select(self._query._replace(filter=event.value))

    @on(DataTable.RowSelected)
    def _chosen(self) -> None:
        if len(self._selection):
            self.push_screen(TranscriptScreen(self._shown))

    def _shown(self, step: int | None, what: Shown) -> str | None:
        """The rollout ``step`` rows further on (None: the next failure), or its times; None if there is none."""
        place = self._next_failure() if step is None else self._table.cursor_row + step
        if place is None or not 0 <= place < len(self._selection):
            return None
        self._go_to(place)
        code = int(self._selection.rows[place])
        try:
            record = read_record(line_of(self._selection.snapshot, code)[2])
        except StaleIndexError:
            return "the file was replaced: go back, r shows the new one"
        title = f"{id_of(self._selection.snapshot, code)} · {place + 1} of {len(self._selection)}"
        width = max(40, self.size.width - 4)
        if what == "transcript":
            return f"{title}\n\n{render_transcript(record.fields, width=width)}"
        times = rollout_timing(self._selection.snapshot, code, record.agent)
        return "\n".join([f"{title} · {heading(record)}", "", *waterfall_lines(times, width)])

    def _next_failure(self) -> int | None:
        wrong = is_failure(self._selection) | (self._selection.values("reward").numbers <= 0)
        places = wrong.nonzero()[0]
        later = places[places > self._table.cursor_row]
        return int(later[0]) if len(later) else None

    def action_filter(self) -> None:
        self.query_one("#filter", Input).focus()

    def action_table(self) -> None:
        self._table.focus()

    def action_down(self) -> None:
        self._table.action_cursor_down()

    def action_up(self) -> None:
        self._table.action_cursor_up()

    def action_next_failure(self) -> None:
        place = self._next_failure()
        if place is not None:
            self._go_to(place)

    def action_sort(self) -> None:
        following = SORTS[(SORTS.index(self._query.sort) + 1) % len(SORTS)]
        self._select(self._query._replace(sort=following))

    def action_timing(self) -> None:
        """Show the times of the file whose row is chosen, of the rows that are shown."""
        place = self._table.cursor_row
        code = int(self._selection.rows[place]) if 0 <= place < len(self._selection) else 0
        parts = self._selection.snapshot.parts
        number = parts[decode_row(code)[0]].source.run if parts else 0
        try:
            found = run_timing(self._selection, number, whole=not self._query.filter.strip())
        except StaleIndexError:
            self._say("the file was replaced: r shows the new one", error=True)
            return
        self.push_screen(TimingScreen("\n".join(run_lines(found, max(60, self.size.width - 4)))))

    def action_reload(self) -> None:
        place = self._table.cursor_row
        self._select(self._query)
        self._go_to(min(place, len(self._selection) - 1))

    # ---- the last line -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        status = self.screen_stack[0].query("#status") if self.screen_stack else ()
        if any(not line.has_class("error") for line in status):  # a mistake stays until it is corrected
            self._show_status()

    def _show_status(self) -> None:
        """Say what is shown, and how many rows are new."""
        snapshot = self._library.snapshot()
        new = sum(map(len, snapshot.parts)) - sum(map(len, self._selection.snapshot.parts))
        order = f" by {self._query.sort}" if self._query.sort else ""
        more = f" · {new} new, r shows them" if new else ""
        self._say(f"{self._library.title}: {len(self._selection)} rows{order}{self._numbers}{more}")

    def _say(self, text: str, *, error: bool = False) -> None:
        status = self.screen_stack[0].query_one("#status", Static)
        status.update(Text(text))
        status.set_class(error, "error")


def _numbers(selection: Selection) -> str:
    """The mean reward of the rows and the share that passes, as on the page's overview."""
    try:
        found = overview_numbers(selection, whole=False)
    except StaleIndexError:
        return ""
    if found["mean_reward"] is None:
        return ""
    passing = f", pass@1 {found['pass_at_k'][0]['value']:.3f}" if found["pass_at_k"] else ""
    return f" · mean reward {found['mean_reward']:.3f}{passing}"


def _cell(value: Any) -> Text:
    if isinstance(value, float):
        return Text(f"{value:g}")
    text = "" if value is None else str(value)[:_WIDEST]
    return Text("".join(sign if sign.isprintable() else " " for sign in text))
