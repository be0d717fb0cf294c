#!/usr/bin/env python3
"""What a rollout costs us, beside a bare HTTP client that makes the same upstream calls.

    python benchmarks_perf/bench.py [--n 2000] [--rounds 3] [--parallel 64] [--json FILE]

A mock model endpoint runs in a process of its own and is not counted. Each round measures the bare client, then a
collection that hosts the Gym in its own process, the same with an https:// endpoint, then one through ``ng_run`` and
HTTP; interleaved, because machines are shared and noisy. CPU per rollout is the difference between N rollouts and one;
start-up has a line of its own.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import (
    BIN,
    HERE,
    ROOT,
    background,
    behind_tls,
    cpu_of,
    free_port,
    memory_mb,
    mock_model,
    raise_open_files_limit,
    run,
)

ENVIRONMENT = "resources_servers/example_single_tool_call"
TASKS = ROOT / ENVIRONMENT / "data/example.jsonl"
CONFIGS = (
    f"{ENVIRONMENT}/configs/example_single_tool_call.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
)
AGENT = "example_single_tool_call_simple_agent"


def policy(base_url: str) -> list[str]:
    return [f"+policy_base_url={base_url}", "+policy_api_key=none", "+policy_model_name=mock"]


def collect(output: Path, tasks: Path, parallel: int, *extra: str) -> list[str]:
    return [
        str(BIN / "ng_collect_rollouts"),
        f"+agent_name={AGENT}",
        f"+input_jsonl_fpath={tasks}",
        f"+output_jsonl_fpath={output}",
        f"+num_samples_in_parallel={parallel}",
        "+overwrite=true",  # each round writes the same files
        *extra,
    ]


def many_tasks(folder: Path, n: int) -> Path:
    """A file of n different tasks, made from the example rows."""
    rows = [json.loads(line) for line in TASKS.read_text().splitlines()]
    path = folder / f"tasks_{n}.jsonl"
    path.write_text("".join(json.dumps(rows[i % len(rows)] | {"number": i}) + "\n" for i in range(n)))
    return path


def bare(base_url: str, tasks: Path, n: int, parallel: int) -> float:
    command = [sys.executable, str(HERE / "bare_client.py"), base_url, str(tasks)]
    result = run([*command, "--n", str(n), "--parallel", str(parallel)])
    return float(json.loads(result.output.splitlines()[-1])["cpu_ms_per_rollout"])


def in_process(folder: Path, base_url: str, n: int, parallel: int, certificate: Path | None = None) -> dict[str, float]:
    host = [f"+config_paths=[{CONFIGS}]", *policy(base_url)]
    trust = {"SSL_CERT_FILE": str(certificate)} if certificate else None
    one = run(collect(folder / "one.jsonl", many_tasks(folder, 1), 1, *host), environment=trust)
    all_ = run(collect(folder / "all.jsonl", many_tasks(folder, n), parallel, *host), environment=trust)
    assert len((folder / "all.jsonl").read_text().splitlines()) == n
    return {
        "cpu_ms": 1000 * (all_.cpu_s - one.cpu_s) / (n - 1),
        "rollouts_per_s": n / (all_.wall_s - one.wall_s),
        "one_row_cpu_s": one.cpu_s,
        "peak_mb": all_.peak_mb,
    }


def over_http(folder: Path, base_url: str, n: int, parallel: int) -> dict[str, float]:
    head = f"+head_server={{host: 127.0.0.1, port: {free_port()}}}"
    command = [str(BIN / "ng_run"), f"+config_paths=[{CONFIGS}]", head, *policy(base_url)]
    started = time.perf_counter()
    with background(command) as gym:
        wait_for_line(gym, "servers ready")
        ready_s, memory = time.perf_counter() - started, memory_mb(gym.pid)
        one = run(collect(folder / "one.jsonl", many_tasks(folder, 1), 1, head))
        before = cpu_of(gym.pid)
        all_ = run(collect(folder / "all.jsonl", many_tasks(folder, n), parallel, head))
        servers = cpu_of(gym.pid) - before
    assert len((folder / "all.jsonl").read_text().splitlines()) == n
    return {
        "cpu_ms": 1000 * (all_.cpu_s - one.cpu_s + servers) / (n - 1),
        "rollouts_per_s": n / (all_.wall_s - one.wall_s),
        "ready_s": ready_s,
        "memory_mb": memory,
    }


def wait_for_line(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    raise SystemExit("ng_run ended early:\n" + "".join(seen[-40:]))


def import_cpu() -> float:
    code = "import time; t = time.process_time(); import nemo_gym.rollout_collection; print(time.process_time() - t)"
    return min(float(run([sys.executable, "-c", code]).output) for _ in range(3))


def measure(n: int, rounds: int, parallel: int) -> dict[str, float]:
    """All figures; each is the median of its rounds."""
    seen: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        mock_model() as base_url,
        behind_tls(base_url, Path(name)) as (https_url, certificate),
    ):
        folder = Path(name)
        for _ in range(rounds):
            seen.setdefault("bare_cpu_ms", []).append(bare(base_url, TASKS, n, parallel))
            for prefix, figures in (
                ("inline_", in_process(folder, base_url, n, parallel)),
                ("https_", in_process(folder, https_url, n, parallel, certificate)),
                ("http_", over_http(folder, base_url, n, parallel)),
            ):
                for key, value in figures.items():
                    seen.setdefault(prefix + key, []).append(value)
    medians = {key: statistics.median(values) for key, values in seen.items()}
    return medians | {
        "inline_ratio": medians["inline_cpu_ms"] / medians["bare_cpu_ms"],
        "https_ratio": medians["https_cpu_ms"] / medians["bare_cpu_ms"],
        "http_ratio": medians["http_cpu_ms"] / medians["bare_cpu_ms"],
        "import_cpu_s": import_cpu(),
    }


def table(f: dict[str, float]) -> str:
    rows = [
        ("CPU per rollout, bare client", f"{f['bare_cpu_ms']:.3f} ms", ""),
        ("CPU per rollout, in one process", f"{f['inline_cpu_ms']:.3f} ms", f"{f['inline_ratio']:.2f} x (at most 2.7)"),
        ("CPU per rollout, model at https://", f"{f['https_cpu_ms']:.3f} ms", f"{f['https_ratio']:.2f} x"),
        ("CPU per rollout, ng_run and HTTP", f"{f['http_cpu_ms']:.3f} ms", f"{f['http_ratio']:.2f} x (at most 4.5)"),
        ("rollouts per second, in one process", f"{f['inline_rollouts_per_s']:.0f}", ""),
        ("rollouts per second, ng_run and HTTP", f"{f['http_rollouts_per_s']:.0f}", ""),
        ("CPU of collecting one row", f"{f['inline_one_row_cpu_s']:.2f} s", "(under 1.2)"),
        ("ng_run ready after", f"{f['http_ready_s']:.2f} s", "(under 2)"),
        ("memory of a running Gym", f"{f['http_memory_mb']:.0f} MB", "(under 150)"),
        ("peak memory of the collector", f"{f['inline_peak_mb']:.0f} MB", ""),
        ("import nemo_gym.rollout_collection", f"{f['import_cpu_s']:.3f} s CPU", "(under 0.35)"),
    ]
    return "\n".join(f"{name:<40}{value:>16}  {note}" for name, value, note in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=2000, help="rollouts a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    raise_open_files_limit()
    figures = measure(args.n, args.rounds, args.parallel)
    print(table(figures))
    text = json.dumps({key: round(value, 4) for key, value in figures.items()})
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
