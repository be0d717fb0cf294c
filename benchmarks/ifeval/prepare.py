"""Writes the 541 prompts of IFEval as rows, from the hub."""

from pathlib import Path
from typing import Final

from nemo_gym.data.hub import HubFile, fetch_rows, write_rows
from resources_servers.verifiable_instructions.registry import benchmark_row

SOURCE: Final = HubFile("google/IFEval", "ifeval_input_data.jsonl", rows=541)
OUTPUT: Final = Path(__file__).absolute().parent / "data" / "ifeval_benchmark.jsonl"


def prepare() -> Path:
    """Write the rows and say where they are."""
    return write_rows(map(benchmark_row, fetch_rows(SOURCE)), OUTPUT)
