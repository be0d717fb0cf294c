"""Writes the 541 prompts of IFEval as rows, from the hub."""

from pathlib import Path
from typing import Final

from nemo_gym.data.hub import HubFile, Row, fetch_rows, write_rows
from resources_servers.verifiable_instructions.registry import read_instructions

SOURCE: Final = HubFile("google/IFEval", "ifeval_input_data.jsonl", rows=541)
OUTPUT: Final = Path(__file__).absolute().parent / "data" / "ifeval_benchmark.jsonl"


def prepare() -> Path:
    """Write the rows and say where they are."""
    return write_rows(map(task, fetch_rows(SOURCE)), OUTPUT)


def task(row: Row) -> Row:
    """A prompt as a row of verifiable_instructions."""
    given = [{name: value for name, value in (kwargs or {}).items() if value is not None} for kwargs in row["kwargs"]]
    names = list(row["instruction_id_list"])
    read_instructions(names, given)
    return {"key": row["key"], "prompt": row["prompt"], "instruction_id_list": names, "kwargs": given}
