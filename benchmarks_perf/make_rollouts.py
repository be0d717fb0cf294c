#!/usr/bin/env python3
"""Writes rollout files of any size as a collector would; the same arguments give the same file.

    python benchmarks_perf/make_rollouts.py rollouts.jsonl [--rollouts 100000] [--bytes 5000] [--repeats 8]
                                            [--failures 0] [--plan] [--steps] [--seed 0]

Text consists of words used as unevenly as in natural language, with numbers, code and line breaks, so an index of it
has about the size of an index of real rollouts. ``--failures`` adds the sidecar with
failed attempts, ``--plan`` the plan, ``--steps`` what each rollout called.
"""

import argparse
import itertools
import random
from pathlib import Path
from typing import Any

import orjson

SYLLABLES = [a + b for a in "bcdfglmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "is", "or")]
CODE = ["x = 3.14", "result = f(x)", "{}", "</div>", "$\\frac{1}{2}$", "**bold**", '"quoted"', "naïve", "第一"]
CLASSES = ["timeout", "rate_limited", "model_error", "verifier_error"]
AGENTS = ["math_agent", "code_agent", "search_agent"]


class Writer:
    """Makes records, one after the other."""

    def __init__(self, size: int, repeats: int, seed: int) -> None:
        self.draw = random.Random(seed)
        self.size = size
        self.repeats = repeats
        self.words = ["".join(self.draw.choices(SYLLABLES, k=self.draw.randint(1, 4))) for _ in range(20_000)]
        self.weights = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(len(self.words))))
        # Words are drawn in advance, in long runs: drawing each anew would take longer than everything measured here.
        self.paragraphs = [self.paragraph() for _ in range(20_000)]

    def paragraph(self) -> str:
        words = self.draw.choices(self.words, cum_weights=self.weights, k=20)
        words[self.draw.randrange(20)] = self.draw.choice([*CODE, str(self.draw.randrange(10_000))])
        return " ".join(words) + ".\n"

    def text(self, size: int) -> str:
        pieces, used = [], 0
        while used < size:
            pieces.append(self.draw.choice(self.paragraphs))
            used += len(pieces[-1])
        return "".join(pieces)[: max(size, 1)]

    def key(self, number: int) -> dict[str, Any]:
        agent = AGENTS[(number // self.repeats) % len(AGENTS)]
        return {
            "agent_ref": {"type": "responses_api_agents", "name": agent},
            "_ng_rollout_index": number % self.repeats,
        }

    def request(self, number: int) -> dict[str, Any]:
        task = random.Random(number // self.repeats)
        question = task.choice(self.paragraphs)[: max(self.size // 8, 30)]
        messages = [{"role": "system", "content": "Use the tools."}, {"role": "user", "content": question}]
        return {"input": messages, "tools": [], "temperature": 1.0, "parallel_tool_calls": True}

    def rollout(self, number: int) -> dict[str, Any]:
        draw, text = self.draw, max(self.size - 1100, 40)
        output: list[dict[str, Any]] = []
        steps = draw.randrange(4)
        for step in range(steps):
            call = {"type": "function_call", "call_id": f"c{step}", "name": "search", "arguments": '{"query": "x"}'}
            result = {"type": "function_call_output", "call_id": f"c{step}", "output": self.text(text // 8)}
            output += [call, result]
        part = {"type": "output_text", "text": self.text(text - steps * (text // 8 + 120)), "annotations": []}
        output.append({"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [part]})
        used = {"input_tokens": draw.randrange(4000), "output_tokens": draw.randrange(2000)}
        reward = float(draw.random() < 0.1 + 0.8 * random.Random(number // self.repeats).random())
        return {
            "_ng_task_index": number // self.repeats,
            "responses_create_params": self.request(number),
            "response": {
                "id": f"resp_{number}",
                "created_at": 1.7e9 + number,
                "model": "model",
                "object": "response",
                "output": output,
                "usage": used | {"total_tokens": sum(used.values())},
            },
            "reward": reward,
            "accuracy": reward == 1.0,
            "extracted_answer": str(draw.randrange(100)),
            "judge": {"score": round(draw.random(), 3), "label": draw.choice(["good", "fair", "poor"])},
            **self.key(number),
        }

    def failure(self, number: int) -> dict[str, Any]:
        kind = self.draw.choice(CLASSES)
        return {
            "_ng_task_index": number // self.repeats,
            "_ng_failure_class": kind,
            "error_message": f"{kind} after 30 s",
            "_ng_attempt": 1,
            "_ng_duration_s": round(self.draw.random() * 30, 3),
            **self.key(number),
        }

    def planned(self, number: int) -> dict[str, Any]:
        return {
            "_ng_task_index": number // self.repeats,
            "responses_create_params": self.request(number),
            **self.key(number),
        }

    def steps(self, number: int, place: int) -> dict[str, Any]:
        """The calls of a rollout: two of the model, a tool and the verification, after seeding."""
        calls, now = [], 0.001
        for kind, server in (
            ("seed", "env"),
            ("model", "policy"),
            ("tool", "env"),
            ("model", "policy"),
            ("verify", "env"),
        ):
            length = round(self.draw.expovariate(1.0 if kind == "model" else 50.0), 6)
            call = {"kind": kind, "server": server, "start": round(now, 6), "duration": length, "status": 200}
            more = {"model": {"tokens_in": 900, "tokens_out": 120}, "tool": {"tool": "python", "route": "/python"}}
            calls.append(call | more.get(kind, {}))
            now += length
        return {
            "_ng_task_index": number // self.repeats,
            "_ng_rollout_index": number % self.repeats,
            "_ng_attempt": 1,
            "agent": self.key(number)["agent_ref"]["name"],
            "started_at": 1_790_000_000.0 + place / 50,
            "duration": round(now, 6),
            "outcome": "completed",
            "steps": calls,
        }


def write_rollouts(
    path: Path,
    rollouts: int,
    *,
    size: int = 5000,
    repeats: int = 8,
    failures: int = 0,
    plan: bool = False,
    steps: bool = False,
    seed: int = 0,
) -> None:
    """Write the file, in the order in which a run would have completed, and those beside it that are requested."""
    writer = Writer(size, repeats, seed)
    order = list(range(rollouts + failures))
    writer.draw.shuffle(order)
    _write(path, map(writer.rollout, order[:rollouts]))
    if failures:
        _write(path.with_name(f"{path.stem}_failures.jsonl"), map(writer.failure, order[rollouts:]))
    if steps:
        found = (writer.steps(number, place) for place, number in enumerate(order[:rollouts]))
        _write(path.with_name(f"{path.stem}_steps.jsonl"), found)
    if plan:
        _write(path.with_name(f"{path.stem}_materialized_inputs.jsonl"), map(writer.planned, sorted(order)))


def _write(path: Path, records: Any) -> None:
    with path.open("wb") as file:
        for record in records:
            file.write(orjson.dumps(record) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--failures", type=int, default=0)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sizes = {"size": options.bytes, "repeats": options.repeats, "seed": options.seed}
    write_rollouts(
        options.path, options.rollouts, failures=options.failures, plan=options.plan, steps=options.steps, **sizes
    )


if __name__ == "__main__":
    main()
