"""Rollouts as one HTML file that opens from disk: the page, its styles and scripts, and the data, all inside.

The file is as safe as the server's answers: a policy in its head allows exactly the scripts and styles that were put
in, by their hashes, and nothing else. Our modules are joined into one script, which works because they follow a
convention: imports are relative, one to a line, without renaming, and top-level names are unique.
"""

import base64
import hashlib
import re
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import replacing
from nemo_gym.metrics.fields import PASS_THRESHOLD
from nemo_gym.view.app import STATIC
from nemo_gym.view.listing import id_of, line_of, read_record, read_values, to_bytes
from nemo_gym.view.overview import current_numbers, overview
from nemo_gym.view.rollout import as_saved, compare_runs, continuity, timing_of
from nemo_gym.view.selection import Selection, is_failure
from nemo_gym.view.timing import run_timing

_SCRIPT: Final = re.compile(r'<script(?P<attributes>[^>]*?)\ssrc="(?P<file>[^"]+)"(?P<more>[^>]*)></script>')
_STYLE: Final = re.compile(r'<link\s[^>]*?rel="stylesheet"[^>]*?href="(?P<file>[^"]+)"[^>]*>')
_IMPORT: Final = re.compile(r'^import .*?from "\./(?P<file>[\w./-]+)";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)
_ROWS: Final = 500  # read at a time
_MOST_COMPARED: Final = 6  # files


class ExportedPage(NamedTuple):
    """The size of an exported page."""

    rollouts: int
    bytes: int


def export_html(
    selection: Selection,
    path: Path,
    *,
    title: str,
    limit_mb: float,
    whole: bool,
    threshold: float = PASS_THRESHOLD,
    static: Path = STATIC,
) -> ExportedPage:
    """Write the rollouts of a selection. More than the limit is an error, and nothing is written."""
    data = embedded_data(selection, title=title, limit=int(limit_mb * 1e6), whole=whole, threshold=threshold)
    page = build_page(static, data)
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: no such folder", hint="correct +export_html=<file to write>")
    try:
        with replacing(path) as file:
            file.write(page)
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror or error}", hint="choose another place") from None
    return ExportedPage(len(selection), len(page))


def embedded_data(selection: Selection, *, title: str, limit: int, whole: bool, threshold: float) -> bytes:
    """What the page would ask the server for, as JSON.

    Whatever takes more than arithmetic is computed here: which task a row belongs to, whether it counts, the intervals
    of the whole selection, and how its files compare.
    """
    snapshot = selection.snapshot
    state = {"version": snapshot.version, "files": [run.state() | {"live": False} for run in snapshot.runs]}
    numbers = overview(selection, whole=whole, threshold=threshold)
    return to_bytes(
        {
            "state": state | {"title": title, "threshold": threshold},
            "columns": [fact.described() for fact in snapshot.columns.values()],
            "rollouts": [orjson.Fragment(row) for row in _rows(selection, limit)],
            "overview": numbers | current_numbers(snapshot.runs, numbers, whole=whole) | {"progress": None},
            "comparisons": _comparisons(selection),
            "timings": [run_timing(selection, run.number, whole=whole) for run in snapshot.runs],
            "apart": snapshot.tasks.apart,
        }
    )


def _rows(selection: Selection, limit: int) -> list[bytes]:
    snapshot, keys = selection.snapshot, selection.snapshot.tasks
    rows: list[bytes] = []
    used = 0
    for start in range(0, len(selection), _ROWS):
        some = Selection(snapshot, selection.rows[start : start + _ROWS])
        codes, places = some.rows.tolist(), keys.places(some.rows)
        values = read_values(snapshot, codes, list(snapshot.columns))
        known = zip(
            codes,
            values,
            keys.task[places].tolist(),
            keys.counts[places].tolist(),
            is_failure(some).tolist(),
            strict=True,
        )
        for code, row, task, counts, failed in known:
            own = {"id": id_of(snapshot, code), "values": row, "task": task, "counted": counts, "failed": failed}
            rows.append(to_bytes(own | _whole_record(selection, code)))
            used += len(rows[-1])
            if used > limit:
                raise _too_large(limit, len(rows), len(selection))
    return rows


def _whole_record(selection: Selection, code: int) -> dict[str, Any]:
    part, number, line = line_of(selection.snapshot, code)
    record = read_record(line)
    return {
        "run": part.source.run,
        "line": number,
        "record": as_saved(line, record),
        "continuity": continuity(record),
        "timing": timing_of(selection.snapshot, code, record),
    }


def _comparisons(selection: Selection) -> dict[str, Any]:
    """Every two files of the selection compared, both ways; none if there are too many."""
    snapshot = selection.snapshot
    if len(snapshot.runs) > _MOST_COMPARED:
        return {}
    owner = snapshot.tasks.run[snapshot.tasks.places(selection.rows)]
    chosen = [Selection(snapshot, selection.rows[owner == run.number]) for run in snapshot.runs]
    return {
        f"{a}:{b}:{pair_by}": compare_runs(
            snapshot, chosen[a], chosen[b], sort="change", start=0, stop=len(selection), pair_by=pair_by
        )
        for a, b in permutations(range(len(chosen)), 2)
        for pair_by in ("content", "index")
    }


def _too_large(limit: int, fit: int, total: int) -> ConfigError:
    return ConfigError(
        f"the page would be larger than {limit / 1e6:g} MB: only {fit - 1} of {total} rollouts fit",
        hint="select fewer with '+filter=\"reward < 0.5\"', or allow more with +max_export_mb=<number>",
    )


# ---- the page --------------------------------------------------------------------------------------------------------
def build_page(static: Path, data: bytes) -> bytes:
    """The page with everything that it refers to, and the data, embedded."""
    try:
        page = (static / "index.html").read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{static}: the viewer's page is not installed", hint="install rollout-gym again") from None
    scripts: list[str] = []
    styles: list[str] = []
    page = _STYLE.sub(lambda found: _put_in(found, "style", static, styles), page)
    page = _SCRIPT.sub(lambda found: _put_in(found, "script", static, scripts), page)
    # Last, because it names the hash of everything that is embedded.
    policy = _policy(scripts, styles)
    head = f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = page.replace("<head>", head, 1)
    # Only "<" could end a script element early, and JSON has another spelling for it.
    content = data.decode().replace("<", "\\u003c")
    element = f'<script type="application/json" id="rollout-gym-data">{content}</script>'
    return _before_body_ends(page, element).encode()


def _put_in(found: re.Match[str], tag: str, static: Path, contents: list[str]) -> str:
    file = static / found["file"].partition("?")[0]
    attributes = (found.groupdict().get("attributes") or "") + (found.groupdict().get("more") or "")
    module = 'type="module"' in attributes
    text = bundle(file) if module else file.read_text("utf-8")
    text = re.sub(rf"</({tag})", r"<\\/\1", text, flags=re.IGNORECASE)
    contents.append(text)
    opening = f'<{tag} type="module">' if module else f"<{tag}>"
    return f"{opening}{text}</{tag}>"


def bundle(entry: Path) -> str:
    """A module with all that it imports, each once and before it is needed."""
    done: dict[Path, str] = {}

    def add(file: Path) -> None:
        text = file.read_text("utf-8")
        done[file] = ""  # holds the place of a module that is imported in a circle
        for found in _IMPORT.finditer(text):
            needed = (file.parent / found["file"]).resolve()
            if needed not in done:
                add(needed)
        del done[file]  # and add it again, so that it comes after what it imports
        done[file] = _EXPORT.sub("", _IMPORT.sub("", text))

    add(entry.resolve())
    return "\n".join(done.values())


def _policy(scripts: list[str], styles: list[str]) -> str:
    hashes: Callable[[list[str]], str] = lambda texts: " ".join(map(_hash, texts)) or "'none'"  # noqa: E731
    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _before_body_ends(page: str, element: str) -> str:
    head, found, tail = page.rpartition("</body>")
    return f"{head}{element}\n{found}{tail}" if found else f"{page}\n{element}"
