"""Writes the 500 problems of MATH that are used as a test as rows, from the hub."""

from pathlib import Path
from typing import Final

from nemo_gym.data.hub import HubFile, Row, fetch_rows, write_rows

SOURCE: Final = HubFile("HuggingFaceH4/MATH-500", "test.jsonl", rows=500)
OUTPUT: Final = Path(__file__).absolute().parent / "data" / "math_500_benchmark.jsonl"


def prepare() -> Path:
    """Write the rows and say where they are."""
    return write_rows(map(task, fetch_rows(SOURCE)), OUTPUT)


def task(row: Row) -> Row:
    """A problem as a row of math_answers."""
    return {
        "id": row["unique_id"],
        "question": row["problem"],
        "expected_answer": row["answer"],
        "kind": row["subject"],
        "difficulty": int(row["level"]),
    }
