"""Writes the 198 questions of GPQA Diamond as rows, from the hub. Its terms must be accepted, and HF_TOKEN set."""

from pathlib import Path
from typing import Final

from nemo_gym.data.hub import HubFile, Row, fetch_rows, write_rows
from resources_servers.multiple_choice.options import labels, shuffled

SOURCE: Final = HubFile("Idavidrein/gpqa", "gpqa_diamond.csv", rows=198)
OUTPUT: Final = Path(__file__).absolute().parent / "data" / "gpqa_benchmark.jsonl"


def prepare() -> Path:
    """Write the rows and say where they are."""
    return write_rows((task(row, number) for number, row in enumerate(fetch_rows(SOURCE))), OUTPUT)


def task(row: Row, number: int) -> Row:
    """A question as a row of multiple_choice; its number decides the order of the options."""
    right = row["Correct Answer"].strip()
    wrong = [row[f"Incorrect Answer {place}"].strip() for place in (1, 2, 3)]
    options = dict(zip(labels(), shuffled([right, *wrong], seed=number), strict=False))
    return {
        "question": row["Question"].strip(),
        "choices": "\n".join(f"{label}) {text}" for label, text in options.items()),
        "options": [{label: text} for label, text in options.items()],
        "expected_answer": next(label for label, text in options.items() if text == right),
        "category": row["High-level domain"],
        "grading_mode": "lenient_answer_colon_md",
    }
