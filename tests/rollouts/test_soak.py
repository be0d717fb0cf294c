"""The soak of ``benchmarks_perf/soak.py`` in small: interrupted, without its endpoint for a while, a worker killed."""

import importlib.util
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks_perf" / "soak.py"


def test_a_bad_day_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("soak", SOAK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    soak = module.Soak(rollouts=300, down_s=1.0, interrupt_at=(0.5,), kill_at=(0.2,), down_at=(0.3,), workers=1)
    found = soak.run(tmp_path)
    assert found["rollouts"] == 300
    assert module.is_good(found), found
    assert found["runs"] >= 2
    assert found["failed_attempts"]
