"""Count letters with a tool that remembers what it was asked: an environment with a state for each rollout.

ng eval run examples/letters.py --model local --num-repeats 4
"""

from typing import Any

import nemo_gym

WORDS = {"strawberry": "r", "mississippi": "s", "banana": "a", "bookkeeper": "e"}

letters = nemo_gym.Environment(
    tasks=[
        {
            "prompt": f"How many times does {letter} occur in {word}? Spell the word first.",
            "word": word,
            "letter": letter,
        }
        for word, letter in WORDS.items()
    ],
    system="Use the tool, then answer with a number.",
    max_steps=4,
)


@letters.setup
def start() -> dict[str, Any]:
    """Every rollout begins with the number of spellings that it may ask for."""
    return {"left": 2, "spelled": []}


@letters.tool
def spell(word: str, state: dict[str, Any]) -> list[str] | str:
    """Spell a word, letter by letter."""
    if not state["left"]:
        return "no spellings left"
    state["left"] -= 1
    state["spelled"].append(word)
    return list(word)


@letters.verify
def score(task: dict[str, Any], response: Any, state: dict[str, Any]) -> dict[str, float]:
    """1 for the right number; half of it if the word was never spelled."""
    is_right = str(task["word"].count(task["letter"])) in response.text
    has_spelled = task["word"] in state["spelled"]
    return {"reward": is_right * (1.0 if has_spelled else 0.5), "spellings": len(state["spelled"])}


@letters.metrics
def by_letter(tasks: list[list[dict[str, Any]]]) -> dict[str, float]:
    """How many tasks were solved at least once."""
    return {"solved_once": sum(any(rollout["reward"] == 1 for rollout in task) for task in tasks) / len(tasks)}


if __name__ == "__main__":
    print(nemo_gym.collect(letters, model="local", repeats=4, temperature=0.7, max_output_tokens=100))
