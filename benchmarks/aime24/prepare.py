"""Writes the 30 problems of the AIME 2024 as rows, from the hub. Answers are whole numbers from 0 to 999."""

from pathlib import Path
from typing import Final

from nemo_gym.data.hub import AS_PARQUET, HubFile, Row, fetch_rows, write_rows

SOURCE: Final = HubFile("HuggingFaceH4/aime_2024", "default/train/0000.parquet", rows=30, revision=AS_PARQUET)
OUTPUT: Final = Path(__file__).absolute().parent / "data" / "aime24_benchmark.jsonl"


def prepare() -> Path:
    """Write the rows and say where they are."""
    return write_rows(map(task, fetch_rows(SOURCE)), OUTPUT)


def task(row: Row) -> Row:
    """A problem as a row of math_answers."""
    # Answers are printed with leading zeros on the sheet.
    return {"id": str(row["id"]), "question": row["problem"], "expected_answer": str(int(row["answer"]))}
