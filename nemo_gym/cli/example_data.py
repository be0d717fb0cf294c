"""Checks the example data that a resources server ships: five tasks, their metrics, five rollouts, no open conflict."""

import json
from pathlib import Path
from typing import Any, Final

EXAMPLES: Final = 5


def problems(server: Path) -> list[str]:
    """Say what is wrong with the example data of a server folder; nothing, if all is well."""
    data = server / "data"
    found = [
        _rows(data / "example.jsonl", hint="write five tasks"),
        _metrics(data / "example_metrics.json"),
        _rows(data / "example_rollouts.jsonl", hint="run ng_collect_rollouts on data/example.jsonl"),
        *(f"{path} is an unresolved conflict; compare it and delete it" for path in sorted(data.glob("*conflict*"))),
    ]
    return [problem for problem in found if problem]


def _rows(path: Path, *, hint: str) -> str | None:
    if not path.is_file():
        return f"{path} is missing; {hint}"
    count = sum(1 for line in path.read_bytes().splitlines() if line.strip())
    return None if count == EXAMPLES else f"{path} has {count} rows, not {EXAMPLES}"


def _metrics(path: Path) -> str | None:
    make = "run ng_prepare_data with +mode=example_validation"
    if not path.is_file():
        return f"{path} is missing; {make}"
    try:
        metrics: Any = json.loads(path.read_bytes())
    except ValueError as error:
        return f"{path} is not JSON ({error}); {make}"
    count = metrics.get("Number of examples") if isinstance(metrics, dict) else None
    return (
        None if count == EXAMPLES else f'{path} has "Number of examples": {json.dumps(count)}, not {EXAMPLES}; {make}'
    )
