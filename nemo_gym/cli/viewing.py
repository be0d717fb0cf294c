"""``ng_viewer``: shows rollouts in a browser or a terminal, or writes them to a page to share."""

import asyncio
import contextlib
import os
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlencode

from pydantic import BaseModel, Field

from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments, with_files
from nemo_gym.cli.parameters import read_parameters
from nemo_gym.cli.signals import cancelled_by_signals, run_async
from nemo_gym.errors import ConfigError, ExitCode, counted
from nemo_gym.filters import parse_filter
from nemo_gym.io.files import split_patterns, user_cache
from nemo_gym.schemas.record import PASS_THRESHOLD
from nemo_gym.view.app import ListenAddress, serving
from nemo_gym.view.export_html import export_html
from nemo_gym.view.home import RunsHome
from nemo_gym.view.library import Library
from nemo_gym.view.selection import Query, select


class ViewerConfig(BaseModel):
    jsonl_fpath: str | list[str] = Field(
        default="",
        description="A rollout file, a pattern (`'results/*.jsonl'`), a folder of runs, or several of them separated "
        "by commas. Default: all runs in the folder `results`, or else in this one.",
    )
    pass_threshold: float = Field(
        default=PASS_THRESHOLD,
        allow_inf_nan=False,
        description="Lowest reward with which a rollout passes; for pass@k.",
    )
    server_host: str = Field(
        default="127.0.0.1", description="Address to listen on; access from other machines requires a token."
    )
    server_port: int = Field(default=7860, ge=0, le=65535, description="Port; if it is in use, the next free one.")
    export_html: str | None = Field(default=None, description="Write one self-contained page to this path instead.")
    filter: str = Field(default="", description="What to export or show first: `reward < 0.5 and tool_calls > 3`.")
    max_export_mb: float = Field(default=50.0, gt=0, description="Maximum size of the exported page.")
    tui: bool = Field(default=False, description="Show the rollouts in the terminal instead.")


def viewer(arguments: Arguments) -> int:
    """Serve the page until Ctrl-C, write it to a file, or show the rollouts in the terminal."""
    config = read_parameters(ViewerConfig, with_files(arguments, "jsonl_fpath", as_list=True))
    parse_filter(config.filter)  # a mistake is reported before anything is read
    if config.tui and find_spec("textual") is None:
        raise ConfigError("the terminal viewer needs Textual", hint="pip install 'rollout-gym[tui]'")
    serves = config.export_html is None and not config.tui
    # The index of a file in a folder that can't be written goes into the cache.
    cache = user_cache(os.environ) / "view"
    places = split_patterns(config.jsonl_fpath) or ["results" if Path("results").is_dir() else "."]
    if serves and any(Path(place).expanduser().is_dir() for place in places):
        with RunsHome([Path(place).expanduser() for place in places], cache=cache) as home:
            return run_async(_serve_home(home, config))
    with Library(places, cache=cache, waits=serves) as library:
        if config.export_html is not None:
            return _export(library, config)
        if config.tui:
            return _terminal(library, config)
        return run_async(_serve(library, config))


async def _serve(library: Library, config: ViewerConfig) -> int:
    task = asyncio.current_task()
    assert task is not None
    with library.following(), cancelled_by_signals(task, announcement="stopping"):
        threshold = config.pass_threshold
        async with serving(library, config.server_host, config.server_port, pass_threshold=threshold) as address:
            console.emit(_link(address, config.filter))
            for path in library.missing():
                console.note(f"nothing is at {path} yet, so the viewer waits for it; if it is a typo, press Ctrl-C")
            with contextlib.suppress(asyncio.CancelledError):
                await _announce_index(library)
                await asyncio.Event().wait()
    return ExitCode.OK


async def _serve_home(home: RunsHome, config: ViewerConfig) -> int:
    task = asyncio.current_task()
    assert task is not None
    with cancelled_by_signals(task, announcement="stopping"):
        threshold = config.pass_threshold
        async with serving(home, config.server_host, config.server_port, pass_threshold=threshold) as address:
            console.emit(address.url)
            runs = await asyncio.to_thread(home.runs)
            console.note(f"{counted(len(runs), 'run')}; open the address above in a browser. Ctrl-C ends the viewer")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
    return ExitCode.OK


def _link(address: ListenAddress, filter_text: str) -> str:
    """The address of the page, including the filter."""
    sign = "&" if "?" in address.url else "?"
    return address.url + (f"{sign}{urlencode({'filter': filter_text})}" if filter_text else "")


async def _announce_index(library: Library) -> None:
    """Print a note once everything is indexed."""
    await asyncio.to_thread(library.caught_up.wait)
    rollouts = sum(run.rollouts.state.rows for run in library.runs)
    failures = sum(run.failures.state.rows for run in library.runs if run.failures)
    console.note(
        f"{counted(rollouts, 'rollout')}, {counted(failures, 'failure')}; open the address above in a browser. "
        "Ctrl-C ends the viewer"
    )


def _export(library: Library, config: ViewerConfig) -> int:
    assert config.export_html is not None
    from nemo_gym.rollouts.store.output import check_derived  # noqa: PLC0415 - only a file that is written needs it

    check_derived(Path(config.export_html), [run.path for run in library.runs])
    library.index_columns()
    for run in library.runs:
        run.plan.refresh()
    snapshot = library.snapshot()
    written = export_html(
        select(snapshot, Query(filter=config.filter)),
        Path(config.export_html),
        title=library.title,
        limit_mb=config.max_export_mb,
        whole=not config.filter.strip(),
        threshold=config.pass_threshold,
    )
    console.note(f"{counted(written.rollouts, 'rollout')}, {written.bytes / 1e6:.1f} MB")
    console.emit(config.export_html)
    return ExitCode.OK


def _terminal(library: Library, config: ViewerConfig) -> int:
    from nemo_gym.view.tui import ViewerApp  # noqa: PLC0415 - Textual is an extra

    console.note(f"reading {library.title}")
    library.index_columns()
    with library.following():
        ViewerApp(library, config.filter).run()
    return ExitCode.OK
