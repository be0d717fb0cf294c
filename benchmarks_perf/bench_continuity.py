"""Whether the tokens of multi-turn rollouts are one growing sequence, with a real tokenizer and a real sampler.

    python benchmarks_perf/bench_continuity.py [--rollouts 220] [--tasks FILE] [--keep results/continuity]

Calculator tasks are run by the embedded model twice, with the same seeds: with on-policy correction, where there must
be no break, and without, where the checker has to find those that are there. The model has to call the tool in every
turn, so almost every rollout has several (a call that is cut off ends one early). Exits with 1 if a corrected run
breaks.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from nemo_gym.global_config import GlobalConfigDictParserConfig, get_global_config_dict, reset_global_config
from nemo_gym.metrics.continuity import Break, check_continuity
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.servers.gym import host_gym

FILES = "resources_servers/calculator/configs/calculator.yaml,responses_api_models/local_model/configs/local_model.yaml"
TASKS = "resources_servers/calculator/data/train.jsonl"
MODEL = "++policy_model.responses_api_models.local_model"
AGENT = "++calculator_simple_agent.responses_api_agents.simple_agent"
REPEATS = 4
TURNS = 3


@dataclass
class Findings:
    """What was found in a file of rollouts."""

    rollouts: int = 0
    several_calls: int = 0
    calls: int = 0
    tool_calls: int = 0
    broken: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    first: Break | None = None

    def add(self, record: dict) -> None:
        output = record["response"]["output"]
        found = check_continuity(output)
        self.rollouts += 1
        self.several_calls += found.calls > 1
        self.calls += found.calls
        self.tool_calls += sum(item["type"] == "function_call" for item in output)
        self.broken += not found.ok
        self.reasons.update(one.reason for one in found.breaks)
        self.first = self.first or next(iter(found.breaks), None)

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.reasons.most_common()) or "none"
        example = f"\n  for example {self.first.message}" if self.first else ""
        return (
            f"{self.rollouts} rollouts, {self.several_calls} of several turns, {self.calls} model calls, "
            f"{self.tool_calls} tool calls; {self.broken} rollouts with breaks: {reasons}{example}"
        )


async def collect(output: Path, tasks: str, rollouts: int, *, corrected: bool) -> Findings:
    settings = (f"{MODEL}.return_token_id_information=true", f"{MODEL}.on_policy_correction={corrected}")
    overrides = [f"+config_paths=[{FILES}]", *settings, f"{AGENT}.max_steps={TURNS}"]
    reset_global_config()
    config = get_global_config_dict(GlobalConfigDictParserConfig(overrides=overrides))
    collection = RolloutCollectionConfig(
        agent_name="calculator_simple_agent",
        input_jsonl_fpath=tasks,
        output_jsonl_fpath=str(output),
        limit=max(1, rollouts // REPEATS),
        num_repeats=REPEATS,
        num_repeats_add_seed=True,
        num_samples_in_parallel=4,
        responses_create_params={"temperature": 1.0, "max_output_tokens": 100, "tool_choice": "required"},
    )
    async with host_gym(config) as gym:
        await RolloutCollectionHelper().collect(collection, client=gym.client)
    findings = Findings()
    with output.open(encoding="utf-8") as lines:
        for line in lines:
            findings.add(json.loads(line))
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=220)
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--keep", type=Path, help="folder to keep the rollouts in")
    options = parser.parse_args()
    broken = 0
    with tempfile.TemporaryDirectory() as scratch:
        for corrected in (True, False):
            started = time.perf_counter()
            output = (options.keep or Path(scratch)) / f"correction_{'on' if corrected else 'off'}.jsonl"
            findings = asyncio.run(collect(output, options.tasks, options.rollouts, corrected=corrected))
            broken += corrected and findings.broken
            print(f"correction {'on ' if corrected else 'off'}: {findings} ({time.perf_counter() - started:.0f} s)")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
