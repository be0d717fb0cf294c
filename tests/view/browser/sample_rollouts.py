"""Rollouts to look at: small runs with all that the page can show, the same on every machine.

`write_run` writes a rollout file with its failures sidecar and its plan. The questions are real arithmetic; the model
that answers them is a dice.
"""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

AGENT: Final = "word_problems_agent"
TOOLS: Final = ("calculator", "python")
FAILURES: Final = ("timeout", "rate_limited", "tool_error", "model_error")
MESSAGES: Final = {
    "timeout": "the rollout took longer than 120 s",
    "rate_limited": "HTTP 429: requests per minute exceeded",
    "tool_error": "HTTP 500: the sandbox ran out of memory",
    "model_error": "HTTP 503: no worker is free",
}
SYSTEM: Final = "Solve the problem. Use the tools where they help, show your work, and end with **Answer: N**."
CLOCK: Final = 1_760_000_000.0


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, the expression that answers it, and the mathematics of it."""

    question: str
    expression: str
    answer: int
    formula: str
    kind: str


def problem(task: int) -> Problem:
    """The problem of a task; a few shapes with other numbers each."""
    dice = random.Random(f"problem {task}")
    n, m, k = dice.randint(3, 12), dice.randint(12, 60), dice.randint(2, 9)
    shapes = [
        Problem(
            f"A train runs {n * 10} km/h for {k} hours and {m} km more. How far does it go?",
            f"{n * 10} * {k} + {m}",
            n * 10 * k + m,
            rf"d = v t + r = {n * 10} \cdot {k} + {m} = {n * 10 * k + m}",
            "motion",
        ),
        Problem(
            f"How many ways are there to choose {k} of {n + 8} books?",
            f"comb({n + 8}, {k})",
            math.comb(n + 8, k),
            rf"\binom{{{n + 8}}}{{{k}}} = \frac{{{n + 8}!}}{{{k}! \, {n + 8 - k}!}} = {math.comb(n + 8, k)}",
            "counting",
        ),
        Problem(
            f"What is the sum of the first {m} positive whole numbers, less {n}?",
            f"{m} * ({m} + 1) // 2 - {n}",
            m * (m + 1) // 2 - n,
            rf"\sum_{{i=1}}^{{{m}}} i - {n} = \frac{{{m} \cdot {m + 1}}}{{2}} - {n} = {m * (m + 1) // 2 - n}",
            "series",
        ),
        Problem(
            f"A rectangle is {n} cm by {m} cm. What is the square of its diagonal, in square centimetres?",
            f"{n}**2 + {m}**2",
            n**2 + m**2,
            rf"c^2 = a^2 + b^2 = {n}^2 + {m}^2 = {n**2 + m**2}",
            "geometry",
        ),
    ]
    return shapes[task % len(shapes)]


def rollout(
    task: int, repeat: int, *, skill: float = 0.55, tokens: bool = False, timing: bool = False
) -> dict[str, Any]:
    """One completed rollout. The better the skill, the more likely it is right."""
    dice = random.Random(f"rollout {task} {repeat} {skill}")
    asked = problem(task)
    hard = (task * 7 % 10) / 10
    right = dice.random() < skill + 0.45 - 0.9 * hard
    said = asked.answer if right else asked.answer + dice.choice([-10, -2, -1, 1, 3, 10])
    output = list(_output(dice, asked, said, calls=dice.randint(0, 3), code=dice.random() < 0.4))
    used = [item for item in output if item["type"] == "function_call"]
    shown = right or dice.random() < 0.4
    reward = 1.0 if right else 0.25 if shown and used else 0.0
    response = _response(dice, output, task, repeat)
    if tokens:
        _add_tokens(dice, output)
    record = {
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        "agent_ref": {"name": AGENT},
        "responses_create_params": {"input": _prompt(asked), "temperature": 0.7, "tools": []},
        "response": response,
        "reward": reward,
        "expected_answer": str(asked.answer),
        "extracted_answer": str(said),
        "correct": right,
        "format_score": 1.0 if shown else 0.5,
        "kind": asked.kind,
        "checks": {"numeric": right, "units": shown},
    }
    return record | ({"timing": _timing(dice, output)} if timing else {})


def failure(task: int, repeat: int) -> dict[str, Any]:
    """An attempt that came to nothing."""
    dice = random.Random(f"failure {task} {repeat}")
    kind = dice.choices(FAILURES, (6, 3, 2, 1))[0]
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        "agent_ref": {"name": AGENT},
        "responses_create_params": {"input": _prompt(problem(task))},
        "_ng_failure_class": kind,
        "error_message": MESSAGES[kind],
        "_ng_attempt": dice.randint(1, 3),
        "_ng_duration_s": round(dice.uniform(2, 120), 3),
    }


def run(tasks: int, repeats: int, *, skill: float = 0.55) -> Iterator[dict[str, Any]]:
    """All rollouts of a run, in the order of their completion."""
    keys = [(task, repeat) for task in range(tasks) for repeat in range(repeats)]
    random.Random(f"order {tasks} {repeats}").shuffle(keys)
    for task, repeat in keys:
        yield rollout(task, repeat, skill=skill, tokens=task % 5 == 0, timing=task % 2 == 0 or task % 5 == 0)


def write_run(
    path: Path, *, tasks: int, repeats: int, skill: float = 0.55, failed: int = 0, planned: int = 0, steps: bool = False
) -> None:
    """A rollout file with what belongs beside it."""
    records = list(run(tasks, repeats, skill=skill))
    _write(path, records[failed:])
    if steps:
        _write(path.with_name(f"{path.stem}_steps.jsonl"), _run_steps(records[failed:]))
    if failed:
        lost = [failure(record["_ng_task_index"], record["_ng_rollout_index"]) for record in records[:failed]]
        _write(path.with_name(f"{path.stem}_failures.jsonl"), lost)
    if planned:
        keys = ({"_ng_task_index": n // repeats, "_ng_rollout_index": n % repeats} for n in range(planned))
        _write(path.with_name(f"{path.stem}_materialized_inputs.jsonl"), keys)


def _write(path: Path, records: Any) -> None:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")


def _prompt(asked: Problem) -> list[dict[str, Any]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked.question}]


def _output(dice: random.Random, asked: Problem, said: int, *, calls: int, code: bool) -> Iterator[dict[str, Any]]:
    thought = (
        f"The question is about {asked.kind}. I should write down what is given before I compute anything. "
        f"Given that, the expression is {asked.expression}. Let me check it with a tool rather than by head, since a "
        "slip in the carry is the most likely mistake here."
    )
    yield {
        "type": "reasoning",
        "id": f"rs_{dice.getrandbits(32):08x}",
        "summary": [{"type": "summary_text", "text": thought}],
    }
    for number in range(calls):
        yield from _call(dice, asked, said, code=code and number == 0)
    text = (
        f"With what is given,\n\n$$ {asked.formula} $$\n\n"
        + ("1. I wrote the quantity as one expression.\n2. I evaluated it with the tool.\n\n" if calls else "")
        + f"**Answer: {said}**"
    )
    part = {"type": "output_text", "text": text, "annotations": []}
    yield {
        "type": "message",
        "id": f"msg_{dice.getrandbits(32):08x}",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def _call(dice: random.Random, asked: Problem, said: int, *, code: bool) -> Iterator[dict[str, Any]]:
    name = "python" if code else "calculator"
    source = f"from math import comb\n\n# evaluate the expression exactly\nresult = {asked.expression}\nprint(result)"
    arguments = {"code": source} if code else {"expression": asked.expression}
    answer = {"stdout": f"{said}\n", "stderr": "", "exit_code": 0} if code else {"result": str(said)}
    call = f"call_{dice.getrandbits(32):08x}"
    yield {
        "type": "function_call",
        "call_id": call,
        "name": name,
        "arguments": json.dumps(arguments),
        "status": "completed",
    }
    yield {"type": "function_call_output", "call_id": call, "output": json.dumps(answer)}


def _response(dice: random.Random, output: list[dict[str, Any]], task: int, repeat: int) -> dict[str, Any]:
    words = sum(len(json.dumps(item)) for item in output) // 4
    given = dice.randint(140, 220)
    usage = {"input_tokens": given, "output_tokens": words, "total_tokens": given + words}
    response = {"id": f"resp_{task}_{repeat}", "object": "response", "model": "example-7b", "status": "completed"}
    return response | {"output": output, "usage": usage}


def _add_tokens(dice: random.Random, output: list[dict[str, Any]]) -> None:
    """Ids and log-probabilities on the last item of each call of the model, as a training run records them."""
    seen = [dice.randrange(32_000) for _ in range(90)]
    for index, item in enumerate(output):
        last = item["type"] == "message" or (item["type"] == "function_call" and index)
        if not last:
            continue
        pieces = _pieces(item["content"][0]["text"]) if item["type"] == "message" else [""] * dice.randint(18, 40)
        ids = [dice.randrange(32_000) for _ in pieces]
        chances = [-abs(dice.gauss(0, 0.25)) if dice.random() < 0.85 else -dice.expovariate(0.5) for _ in pieces]
        item |= {"prompt_token_ids": list(seen), "generation_token_ids": ids, "generation_log_probs": chances}
        if item["type"] == "message":
            item["content"][0]["logprobs"] = [
                {"token": piece, "logprob": chance} for piece, chance in zip(pieces, chances, strict=True)
            ]
        seen += [*ids, *(dice.randrange(32_000) for _ in range(25))]


def _pieces(text: str) -> list[str]:
    """Something like tokens: at most four characters, blanks with what follows them."""
    words = text.replace(" ", "\0 ").split("\0")
    return [word[at : at + 4] for word in words for at in range(0, len(word), 4)]


def _timing(dice: random.Random, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    steps, now = [], CLOCK
    for item in output:
        if item["type"] == "reasoning":
            continue
        tool = item["type"] == "function_call_output"
        length = dice.uniform(0.05, 0.9) if tool else dice.uniform(0.4, 3.0)
        name = "tool" if tool else "model: call" if item["type"] == "function_call" else "model: answer"
        steps.append(
            {"name": name, "kind": "tool" if tool else "model", "start": round(now, 3), "end": round(now + length, 3)}
        )
        now += length + 0.02
    return steps


AT_ONCE: Final = 16


def _run_steps(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The steps of a run whose rollouts took turns in a few slots."""
    free = [CLOCK + number * 0.01 for number in range(AT_ONCE)]
    for record in records:
        slot = free.index(min(free))
        found = steps_of(record) | {"started_at": round(free[slot], 6)}
        free[slot] += found["duration"] + 0.01
        yield found


def steps_of(record: dict[str, Any]) -> dict[str, Any]:
    """The calls of a completed rollout: seed, model and tools in turn, and a verification that asks a judge."""
    dice = random.Random(f"steps {record['_ng_task_index']} {record['_ng_rollout_index']}")
    steps: list[dict[str, Any]] = []
    now = _step(steps, 0.001, "seed", "word_problems", "/seed_session", dice.uniform(0.01, 0.05))
    for item in record["response"]["output"]:
        if item["type"] == "function_call":
            now = _model_call(dice, steps, now)
            tool = item["name"]
            length = dice.lognormvariate(-1.2, 0.8) if tool == "python" else dice.uniform(0.01, 0.06)
            now = _step(steps, now + 0.004, "tool", "word_problems", f"/{tool}", length, tool=tool)
    now = _model_call(dice, steps, now)
    verify, begun = len(steps), now + 0.002
    steps.append({"kind": "verify", "server": "word_problems", "route": "/verify", "start": begun, "status": 200})
    judged = _step(
        steps, begun + 0.03, "judge", "judge_model", "/v1/responses", dice.uniform(0.3, 1.2), parent=verify,
        tokens_in=310, tokens_out=24, finish="completed",
    )  # fmt: skip
    steps[verify]["duration"] = round(judged + 0.02 - begun, 6)
    return {
        "_ng_task_index": record["_ng_task_index"],
        "_ng_rollout_index": record["_ng_rollout_index"],
        "_ng_attempt": 1,
        "agent": AGENT,
        "duration": round(judged + 0.03, 6),
        "waited": round(sum(step.get("waited", 0.0) for step in steps), 6),
        "outcome": "completed",
        "steps": steps,
    }


def _model_call(dice: random.Random, steps: list[dict[str, Any]], now: float) -> float:
    """A call that sometimes waits, and now and then is repeated. Returns when it ended."""
    waited = round(dice.uniform(0.1, 0.7), 6) if dice.random() < 0.35 else 0.0
    tokens = dice.randint(40, 260)
    start = now + 0.003
    more: dict[str, Any] = {"tokens_in": dice.randint(300, 1500), "tokens_out": tokens, "finish": "completed"}
    if waited:
        more |= {"waited": waited, "waited_for": "slot"}
    if dice.random() < 0.12:
        more |= {"retries": [{"at": round(start + waited, 6), "failed": "429"}], "waited": waited + 0.5}
        more["waited_for"] = "retry"
    length = more.get("waited", 0.0) + tokens / dice.uniform(70, 130)
    return _step(steps, start, "model", "policy_model", "/v1/responses", length, **more)


def _step(
    steps: list[dict[str, Any]], start: float, kind: str, server: str, route: str, length: float, **more: Any
) -> float:
    call = {"kind": kind, "server": server, "route": route, "start": round(start, 6), "duration": round(length, 6)}
    steps.append(call | {"status": 200, **more})
    return start + length
