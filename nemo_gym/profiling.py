"""Front door: profiles a part of a server, and writes a table and a file for profile viewers.

    with Profiler(name="verify", base_profile_dir="results/profile"):
        …

It measures CPU time, so waiting for a model costs nothing. Only one profiler can run at a time in a thread.
"""

import cProfile
import io
import pstats
import re
import time
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Profiler"]


class Profiler:
    """Collects a profile between ``start`` and ``stop``; ``dump`` writes it. Leaving the context stops and dumps."""

    def __init__(self, name: str, base_profile_dir: str | Path, required_str: str | None = None) -> None:
        self.name = name
        self.base_profile_dir = Path(base_profile_dir)
        self.required_str = required_str  # only functions whose file or name contains this are in the table
        self._profile = cProfile.Profile(time.process_time)

    def start(self) -> None:
        """Start or resume collecting."""
        self._profile.enable()

    def stop(self) -> None:
        """Stop collecting, without discarding anything."""
        self._profile.disable()

    def dump(self) -> Path:
        """Write ``<name>.log`` (a table) and ``<name>.prof`` (for snakeviz, gprof2dot, pstats); returns the table."""
        self.base_profile_dir.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^\w.-]+", "_", self.name)
        table = io.StringIO()
        stats = pstats.Stats(self._profile, stream=table).sort_stats("cumulative")
        stats.print_stats(*([re.escape(self.required_str)] if self.required_str else []))
        stats.dump_stats(self.base_profile_dir / f"{stem}.prof")
        path = self.base_profile_dir / f"{stem}.log"
        path.write_text(table.getvalue(), "utf-8")
        return path

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.dump()
