"""What `make demo` runs: a small language model attempts five tasks, four times each; each rollout is scored and saved.

    python scripts/demo.py [--model NAME] [--base-url URL] [--api-key KEY]

It shows the Python that it runs, then the rewards of each task, one rollout, and what to type next.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import nemo_gym
from nemo_gym.cli import console
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.view.transcript import render_transcript

ENVIRONMENT: Final = "calculator"
OPTIONS: Final[dict[str, Any]] = {"repeats": 4, "temperature": 0.7, "max_output_tokens": 100}
OUTPUT: Final = Path("results/demo/rollouts.jsonl")
WIDTH: Final = 100
INTRODUCTION: Final = """\
A small language model inside this process attempts five arithmetic tasks, four times each. It can
call a calculator. Every attempt is scored (1 for the right number, 0 for anything else) and saved."""
NEXT: Final = """\
source .venv/bin/activate

# view the rollouts in your browser
ng_viewer +jsonl_fpath=results/demo/rollouts.jsonl

# another environment
ng eval run format_following --model local --num-repeats 4 --max-output-tokens 100 --output results/format.jsonl

# your own endpoint: OpenAI, vLLM, SGLang, llama.cpp, ...
ng eval run calculator --model openai:my-model --model-url http://127.0.0.1:8000/v1 --model-api-key none \\
    --output results/mine.jsonl"""


def main(arguments: Sequence[str]) -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="local")
    parser.add_argument("--base-url")
    parser.add_argument("--api-key")
    given = parser.parse_args(arguments)
    console.emit(f"{INTRODUCTION}\n\n{shown(given.model)}")
    # A second demonstration moves the rollouts of the first to a folder beside its own.
    files: dict[str, Any] = {"output": OUTPUT, "overwrite": True}
    endpoint: dict[str, Any] = {"base_url": given.base_url, "api_key": given.api_key}
    if given.model == "local":
        # With few at once, rollouts end from early on, and the examples in the prompt are read less often.
        endpoint["model_settings"] = {"n_parallel": 2}
    try:
        run = nemo_gym.collect(ENVIRONMENT, model=given.model, **files, **endpoint, **OPTIONS)
    except (ConfigError, RolloutError) as error:
        hint = getattr(error, "hint", None)
        print(f"error: {error}" + (f"\n\nhint: {hint}" if hint else ""), file=sys.stderr)
        return 1
    console.emit(f"\n{heading('Rewards of each task, one for each attempt')}\n{rewards_by_task(run)}")
    console.emit(f"{len(run)} rollouts in {run.path}, mean reward {run.mean_reward}")
    console.emit(f"\n{heading('One rollout')}\n{transcript(worth_reading(list(run)))}")
    console.emit(f"\n{heading('What to type next')}\n{NEXT}")
    return 0


def shown(model: str, options: Mapping[str, Any] = OPTIONS) -> str:
    """Write the call as a person would type it."""
    values = ", ".join(f"{name}={json.dumps(value)}" for name, value in {"model": model, **options}.items())
    return f"run = nemo_gym.collect({json.dumps(ENVIRONMENT)}, {values})"


def rewards_by_task(run: nemo_gym.Run) -> str:
    """List the tasks, each with its question and the reward of each of its rollouts."""
    tasks: dict[int, list[nemo_gym.Rollout]] = {}
    for rollout in sorted(run, key=lambda rollout: rollout.key or (0, 0)):
        tasks.setdefault(rollout.key.task if rollout.key else 0, []).append(rollout)
    rows = [
        (str(task), rollouts[0].task["question"], "  ".join(f"{rollout.reward:g}" for rollout in rollouts))
        for task, rollouts in tasks.items()
    ]
    return console.columns(rows)


def worth_reading(rollouts: Sequence[nemo_gym.Rollout]) -> nemo_gym.Rollout:
    """Pick a rollout that was right and used the tool, if there is one."""
    return max(rollouts, key=lambda rollout: (rollout.reward or 0.0, rollout.fields["used_calculator"]))


def transcript(rollout: nemo_gym.Rollout) -> str:
    """What happened in a rollout, from the question on; the prompt begins with two examples."""
    asked = {"input": rollout.record.params["input"][-1:]}
    fields = {"responses_create_params": asked, "response": rollout.record.response, "reward": rollout.reward}
    _, _, text = render_transcript(fields, width=WIDTH).split("\n", 2)
    return text


def heading(text: str) -> str:
    """Make a line that stands out on a terminal and reads as a heading elsewhere."""
    return console.paint(f"{text}:", "bold")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
