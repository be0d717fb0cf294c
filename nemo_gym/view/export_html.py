"""Rollouts as one HTML file that opens from disk: ``page`` with the data of a selection inside."""

from itertools import permutations, product
from math import isinf
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import replacing
from nemo_gym.schemas.record import PASS_THRESHOLD
from nemo_gym.view.audited import run_audit
from nemo_gym.view.by_field import fields_of_run
from nemo_gym.view.listing import id_of, line_of, read_record, read_values, to_bytes
from nemo_gym.view.marking import marks_of
from nemo_gym.view.overview import current_numbers, overview_numbers
from nemo_gym.view.page import STATIC, build_page
from nemo_gym.view.rollout import CHANGE_ORDERS, PAIRINGS, as_saved, compare_fields, continuity, pair_runs, rows_of_run
from nemo_gym.view.selection import Selection, is_failure
from nemo_gym.view.timing import rollout_timing, run_timing

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
    """Write the rollouts of a selection. More than the limit is an error, and nothing is written.

    ``whole`` says that nothing was filtered, so that the plan applies; ``threshold`` is the lowest reward with which a
    rollout solves its task; ``static`` is the folder of the page's styles and scripts.
    """
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
    numbers = overview_numbers(selection, whole=whole, threshold=threshold)
    return to_bytes(
        {
            "state": state | {"title": title, "threshold": threshold},
            "columns": [fact.described() for fact in snapshot.columns.values()],
            "rollouts": [orjson.Fragment(row) for row in _rows(selection, limit)],
            "overview": numbers | current_numbers(snapshot.runs, numbers, whole=whole) | {"progress": None},
            "comparisons": _comparisons(selection),
            "fields": fields_of_run(selection),
            "timings": [run_timing(selection, run.number, whole=whole) for run in snapshot.runs],
            "audit": {"runs": [run_audit(run) for run in snapshot.runs]},
            "marks": marks_of(selection, threshold),
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
            own = {
                "id": id_of(snapshot, code),
                "values": _with_infinities(row),
                "task": task,
                "counted": counts,
                "failed": failed,
            }
            rows.append(to_bytes(own | _whole_record(selection, code)))
            used += len(rows[-1])
            if used > limit:
                raise _too_large(limit, len(rows), len(selection))
    return rows


def _with_infinities(values: dict[str, Any]) -> dict[str, Any]:
    """The values for JSON, which has no infinities: a number that is too large is read as one."""
    return {
        name: orjson.Fragment(b"1e999" if value > 0 else b"-1e999") if type(value) is float and isinf(value) else value
        for name, value in values.items()
    }


def _whole_record(selection: Selection, code: int) -> dict[str, Any]:
    part, number, line = line_of(selection.snapshot, code)
    record = read_record(line)
    return {
        "run": part.source.run,
        "line": number,
        "record": as_saved(line, record),
        "continuity": continuity(record),
        "timing": rollout_timing(selection.snapshot, code, record.agent),
    }


def _comparisons(selection: Selection) -> dict[str, Any]:
    """Every two files of the selection compared, both ways; none if there are too many."""
    snapshot = selection.snapshot
    if len(snapshot.runs) > _MOST_COMPARED:
        return {}
    chosen = [rows_of_run(selection, run.number) for run in snapshot.runs]
    found = {}
    for (a, b), pair_by in product(permutations(range(len(chosen)), 2), PAIRINGS):
        compared = pair_runs(
            snapshot, chosen[a], chosen[b], sort=CHANGE_ORDERS[0], start=0, stop=len(selection), pair_by=pair_by
        )
        found[f"{a}:{b}:{pair_by}"] = compared | {
            "tasks": list(map(_with_infinities, compared["tasks"])),
            "fields": compare_fields(snapshot, chosen[a], chosen[b], pair_by=pair_by),
        }
    return found


def _too_large(limit: int, fit: int, total: int) -> ConfigError:
    return ConfigError(
        f"the page would be larger than {limit / 1e6:g} MB: only {fit - 1} of {total} rollouts fit",
        hint="select fewer with '+filter=\"reward < 0.5\"', or allow more with +max_export_mb=<number>",
    )
