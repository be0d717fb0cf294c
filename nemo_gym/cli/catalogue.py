"""``ng_list_benchmarks``: what there is to run, here and in the installation."""

import difflib
import json
from collections.abc import Sequence
from typing import Final

from nemo_gym.benchmarks import BenchmarkConfig, discover_benchmarks
from nemo_gym.cli import console
from nemo_gym.cli.command import Exit
from nemo_gym.cli.parameters import ListBenchmarksConfig, read_parameters

SIMILAR: Final = 0.7


def list_benchmarks(overrides: Sequence[str]) -> int:
    """Print the benchmarks as a table or JSON."""
    config = read_parameters(ListBenchmarksConfig, overrides)
    known = discover_benchmarks().values()
    found = [benchmark for benchmark in known if not config.query or _matches(benchmark, config.query)]
    names = ("name", "domain", "agent_name", "num_repeats")
    if config.json_:
        console.emit(json.dumps([{name: getattr(benchmark, name) for name in names} for benchmark in found], indent=2))
    elif found:
        rows = [tuple(str(getattr(benchmark, name) or "") for name in names) for benchmark in found]
        console.emit(console.table(("Benchmark name", "Domain", "Agent name", "Num repeats"), rows))
    else:
        console.note("no benchmarks found" + (f" for {config.query!r}" if config.query else ""))
    return Exit.OK


def _matches(benchmark: BenchmarkConfig, query: str) -> bool:
    """Whether the name or the domain contains the words or resembles them."""
    words = query.lower()
    texts = [text.lower() for text in (benchmark.name, benchmark.domain) if text]
    return any(words in text or difflib.SequenceMatcher(a=words, b=text).ratio() >= SIMILAR for text in texts)
