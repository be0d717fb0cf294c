"""Writes the 300 prompts of IFBench as rows, from the hub."""

from pathlib import Path
from typing import Final

from nemo_gym.data.hub import AS_PARQUET, HubFile, fetch_rows, write_rows
from resources_servers.verifiable_instructions.registry import benchmark_row

SOURCE: Final = HubFile("allenai/IFBench_test", "default/train/0000.parquet", rows=300, revision=AS_PARQUET)
OUTPUT: Final = Path(__file__).absolute().parent / "data" / "ifbench_benchmark.jsonl"


def prepare() -> Path:
    """Write the rows and say where they are."""
    return write_rows(map(benchmark_row, fetch_rows(SOURCE)), OUTPUT)
