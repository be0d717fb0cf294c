"""Writes the 1,319 test problems of GSM8K as rows, from the hub. The answer is what follows ``####``."""

from pathlib import Path
from typing import Final

from nemo_gym.data.hub import AS_PARQUET, HubFile, Row, fetch_rows, write_rows

SOURCE: Final = HubFile("openai/gsm8k", "main/test/0000.parquet", rows=1319, revision=AS_PARQUET)
OUTPUT: Final = Path(__file__).absolute().parent / "data" / "gsm8k_benchmark.jsonl"


def prepare() -> Path:
    """Write the rows and say where they are."""
    return write_rows(map(task, fetch_rows(SOURCE)), OUTPUT)


def task(row: Row) -> Row:
    """A problem as a row of math_answers."""
    answer = row["answer"].rpartition("####")[2].strip().replace(",", "")
    return {"question": row["question"], "expected_answer": answer}
