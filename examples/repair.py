"""A model repairs a repository in a sandbox: it looks, runs a test, edits a file, and hidden tests decide.

The model is a function, so that the example needs neither a network nor a key; replace it by "local", "openai:NAME" or
any other. Afterwards, ``ng_view results/repair/rollouts.jsonl`` shows the rollout with what was changed.
"""

import json
from collections.abc import Mapping
from typing import Any

import nemo_gym
from resources_servers.workspace.tools import declarations

PACKAGE = '''"""Intervals of whole numbers."""


def merge(intervals):
    """Join the intervals that overlap or touch: [(1, 2), (2, 5)] is [(1, 5)]."""
    joined = []
    for start, end in sorted(intervals):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
'''
VISIBLE = """from intervals import merge


def test_overlapping():
    assert merge([(1, 4), (2, 5)]) == [(1, 5)]
"""
HIDDEN = """from intervals import merge


def test_touching():
    assert merge([(1, 2), (2, 5)]) == [(1, 5)]


def test_inside():
    assert merge([(1, 9), (2, 3)]) == [(1, 9)]


def test_apart():
    assert merge([(4, 5), (1, 2)]) == [(1, 2), (4, 5)]
"""
QUESTION = "merge([(1, 2), (2, 5)]) returns both intervals as they are, but they touch. Repair intervals.py."
TASK = {
    "prompt": QUESTION,
    "responses_create_params": {"tools": declarations()},
    "world": {"files": {"intervals.py": PACKAGE, "tests/test_visible.py": VISIBLE}},
    "tests": {"files": {"tests/test_hidden.py": HIDDEN}},
}
STEPS: list[tuple[str, dict[str, Any]]] = [
    ("list_files", {}),
    ("read_file", {"path": "intervals.py"}),
    ("run", {"command": "python3 -c 'from intervals import merge; print(merge([(1, 2), (2, 5)]))'"}),
    ("edit_file", {"path": "intervals.py", "old_text": "start < joined", "new_text": "start <= joined"}),
    ("run", {"command": "python3 -c 'from intervals import merge; print(merge([(1, 2), (2, 5)]))'"}),
]


def mechanic(request: Mapping[str, Any]) -> Any:
    """The model: one step for each tool result that it has seen, then an answer."""
    done = sum(item.get("type") == "function_call_output" for item in request["input"])
    if done == len(STEPS):
        return "Intervals that touch are joined now: the comparison left out the case that they share an end."
    name, arguments = STEPS[done]
    return {"type": "function_call", "name": name, "call_id": f"call_{done}", "arguments": json.dumps(arguments)}


if __name__ == "__main__":
    run = nemo_gym.collect("workspace", model=mechanic, tasks=[TASK], output="results/repair/rollouts.jsonl")
    for rollout in run:
        print(f"reward {rollout.reward}: {rollout.text}\n\n{rollout.fields['workspace_diff']}")
