"""What a notebook shows of a run: a small table with a chart, and the viewer served from a thread of this process."""

import asyncio
import os
import sys
import threading
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

import numpy as np

from nemo_gym.api.runs import Run
from nemo_gym.errors import counted
from nemo_gym.io.files import user_cache
from nemo_gym.schemas.record import REWARD
from nemo_gym.servers.event_loop import new_event_loop
from nemo_gym.view.app import serving
from nemo_gym.view.library import Library

BINS: Final = 10
WIDTH: Final = 240
HEIGHT: Final = 60


@dataclass(slots=True)
class OpenViewer:
    """A viewer that this process serves; in a notebook it shows as a link."""

    url: str = ""
    error: BaseException | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)

    def show(self, *, wait: bool | None) -> None:
        """Wait until Ctrl-C if this is a script, whose end would be the end of the page."""
        interactive = hasattr(sys, "ps1") or sys.flags.interactive
        if wait if wait is not None else not interactive:
            sys.stderr.write(f"{self.url}\nCtrl-C ends the viewer\n")
            try:
                self._stop.wait()
            except KeyboardInterrupt:
                self.close()

    def close(self) -> None:
        """End the viewer."""
        self._stop.set()

    def serve(self, path: Path, port: int) -> None:
        """Serve until ``close``; runs in a thread."""
        try:
            with (
                Library([str(path)], cache=user_cache(os.environ) / "view", waits=True) as library,
                library.following(),
                asyncio.Runner(loop_factory=new_event_loop) as runner,
            ):
                runner.run(self._serve(library, port))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for it
            self.error = error
        finally:
            self.ready.set()

    async def _serve(self, library: Library, port: int) -> None:
        async with serving(library, "127.0.0.1", port) as address:
            self.url = address.url
            self.ready.set()
            await asyncio.to_thread(self._stop.wait)

    def __repr__(self) -> str:
        return self.url

    def _repr_html_(self) -> str:
        return anchor(self.url, self.url)


def open_viewer(path: Path, *, port: int) -> OpenViewer:
    """Serve a rollout file from a thread that ends with the process."""
    viewer = OpenViewer()
    threading.Thread(target=viewer.serve, args=(path, port), name="viewer", daemon=True).start()
    viewer.ready.wait()
    if viewer.error is not None:
        raise viewer.error
    return viewer


def anchor(url: str, text: str) -> str:
    """A link that opens beside the notebook."""
    return f'<a href="{escape(url)}" target="_blank">{escape(text)}</a>'


def run_as_html(run: Run) -> str:
    """A table of the run's main numbers beside the distribution of its rewards."""
    tasks = len(run.table.task_starts())
    rows = [
        ("rollouts", f"{len(run)} of {counted(tasks, 'task')}"),
        ("mean reward", f"{run.mean_reward!r}"),
        *([("failed attempts", str(len(run.failures)))] if run.failures else []),
    ]
    shown = [(name, escape(value)) for name, value in rows] + [
        ("file", anchor(run.path.resolve().as_uri(), str(run.path)))
    ]
    cells = "".join(f"<tr><th style='text-align:left'>{name}</th><td>{value}</td></tr>" for name, value in shown)
    opened = anchor(run.viewer.url, "the rollouts") if run.viewer else "<code>run.view()</code> opens the rollouts"
    hint = f"<small>{opened}</small>"
    return f"<div style='display:flex;gap:2em;align-items:center'><table>{cells}</table>{histogram(run)}</div>{hint}"


def histogram(run: Run) -> str:
    """The distribution of rewards as SVG; empty if there are none."""
    column = run.table.top.get(REWARD)
    rewards = column.values[column.known] if column is not None else np.empty(0)
    rewards = rewards[np.isfinite(rewards)]
    if not len(rewards):
        return ""
    low, high = min(0.0, float(rewards.min())), max(1.0, float(rewards.max()))
    counts, _ = np.histogram(rewards, BINS, (low, high))
    step, scale = WIDTH / BINS, (HEIGHT - 2) / int(counts.max())
    bars = "".join(
        f'<rect x="{place * step + 1:.1f}" y="{HEIGHT - count * scale:.1f}" width="{step - 2:.1f}" '
        f'height="{count * scale:.1f}" fill="#2a7ab0"><title>{count}</title></rect>'
        for place, count in enumerate(counts.tolist())
    )
    ends = "".join(f"<small>{text}</small>" for text in (f"{low:g}", "rewards", f"{high:g}"))
    labels = f"<div style='display:flex;justify-content:space-between'>{ends}</div>"
    chart = f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="distribution of rewards">{bars}</svg>'
    return f"<div style='width:{WIDTH}px'>{chart}{labels}</div>"
