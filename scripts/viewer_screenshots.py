"""Takes the pictures of the viewer in ``docs/images`` with sample rollouts, the real command and headless Chromium.

    python scripts/viewer_screenshots.py [--output docs/images] [--all]

The rollouts and the browser driver are those of the browser tests. ``--all`` takes every view at both widths and in
both themes, for inspection; otherwise only the pictures used in the documentation are taken.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "view" / "browser"))

import chromium  # noqa: E402 - of the tests
import sample_rollouts  # noqa: E402

WIDE: Final = (1280, 860)
NARROW: Final = (390, 844)
SETTLED: Final = (
    "document.querySelector('main') !== null && document.querySelector('[aria-busy=true], .grid.stale') === null && "
    "document.querySelector('a.row, .chart svg, .group, .step, .run-task, .segment, .waterfall') !== null"
)
VIEWS: Final = {
    "overview": "view=overview",
    "table": "view=table&filter=reward+%3C+1+and+tool_calls+%3E+0&sort=-tokens",
    "groups": "view=groups",
    "rollout": "view=table&rollout={rollout}",
    "tokens": "view=table&rollout={rollout}&tab=tokens",
    "waterfall": "view=table&rollout={rollout}&tab=timing",
    "timing": "view=timing",
    "compare": "view=compare&a={rollout}&b={other}",
    "runs": "view=compare",
}


class Shot(NamedTuple):
    """A picture: what it shows, how wide and in which theme."""

    view: str
    width: int = WIDE[0]
    theme: str = "light"

    @property
    def name(self) -> str:
        """The name of its file."""
        parts = [
            "viewer",
            self.view,
            "narrow" if self.width == NARROW[0] else "",
            "dark" if self.theme == "dark" else "",
        ]
        return "-".join(filter(None, parts)) + ".png"


SHOWN: Final = (
    Shot("overview"),
    Shot("table", theme="dark"),
    Shot("groups"),
    Shot("rollout"),
    Shot("tokens"),
    Shot("waterfall"),
    Shot("timing"),
    Shot("compare", theme="dark"),
    Shot("runs"),
    Shot("overview", width=NARROW[0]),
    Shot("rollout", width=NARROW[0], theme="dark"),
)


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--all", action="store_true", help="every view at both widths and in both themes")
    options = parser.parse_args()
    executable = chromium.find_chromium()
    if executable is None:
        print("error: no Chromium here\n\nhint: apt-get install chromium", file=sys.stderr)
        return 1
    every = [
        Shot(view, width, theme) for view in VIEWS for width in (WIDE[0], NARROW[0]) for theme in ("light", "dark")
    ]
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        baseline, tuned = Path(folder) / "baseline.jsonl", Path(folder) / "tuned.jsonl"
        sample_rollouts.write_run(baseline, tasks=80, repeats=8, failed=31, planned=800, steps=True)
        sample_rollouts.write_run(tuned, tasks=80, repeats=8, skill=0.7)
        with chromium.running(executable) as browser, served(baseline) as one, served(baseline, tuned) as two:
            take(browser, every if options.all else SHOWN, options.output, {"runs": two}, one)
    return 0


def take(browser: Any, shots: Sequence[Shot], output: Path, addresses: dict[str, str], usual: str) -> None:
    """Take pictures one after the other in one tab."""
    page = browser.open()
    page.go(f"{usual}#view=table")
    rollout, other = page.wait(f"({PAIR})()", "a task that was both solved and not")
    for shot in shots:
        page.resize(shot.width, WIDE[1] if shot.width == WIDE[0] else NARROW[1])
        page.theme(shot.theme)
        page.go(f"{addresses.get(shot.view, usual)}#{VIEWS[shot.view].format(rollout=rollout, other=other)}")
        page.wait(SETTLED, f"{shot.view} to settle")
        # Charts are drawn once their panel has a size; two frames later everything is there.
        page.evaluate("new Promise((done) => setTimeout(done, 400))")
        page.screenshot(output / shot.name)
        print(shot.name)


# A rollout with tokens and times that failed its check after calling tools, and a repeat that passed.
PAIR: Final = """async () => {
    const ask = async (filter) => {
        const reply = await fetch("api/rollouts?" + new URLSearchParams({ filter, limit: 1000 }));
        return (await reply.json()).rows;
    };
    for (const row of await ask("reward < 1 and tool_calls >= 2 and failure is null")) {
        if (row.values.task % 5) continue;
        const others = await ask(`task == ${row.values.task} and reward == 1 and tool_calls >= 1`);
        if (others.length) return [row.id, others[0].id];
    }
    return null;
}"""


@contextmanager
def served(*paths: Path) -> Iterator[str]:
    """Serve the files in a viewer and return its address."""
    files = ",".join(f"'{path}'" for path in paths)
    command = [sys.executable, "-m", "nemo_gym.cli", "viewer", f"+jsonl_fpath=[{files}]", "+server_port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
