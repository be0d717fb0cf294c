"""Writes the 12,032 questions of MMLU-Pro as rows, from the hub. They have up to ten options."""

from pathlib import Path
from typing import Final

from nemo_gym.data.hub import AS_PARQUET, HubFile, Row, fetch_rows, write_rows
from resources_servers.multiple_choice.options import labels

SOURCE: Final = HubFile("TIGER-Lab/MMLU-Pro", "default/test/0000.parquet", rows=12032, revision=AS_PARQUET)
OUTPUT: Final = Path(__file__).absolute().parent / "data" / "mmlu_pro_benchmark.jsonl"


def prepare() -> Path:
    """Write the rows and say where they are."""
    return write_rows(map(task, fetch_rows(SOURCE)), OUTPUT)


def task(row: Row) -> Row:
    """A question as a row of multiple_choice."""
    options = dict(zip(labels(), row["options"], strict=False))
    return {
        "id": row["question_id"],
        "question": row["question"],
        "choices": "\n".join(f"{label}. {text}" for label, text in options.items()),
        "options": [{label: text} for label, text in options.items()],
        "expected_answer": row["answer"],
        "category": row["category"],
        "grading_mode": "answer_is",
    }
