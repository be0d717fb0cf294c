"""What `make demo` runs: a small language model attempts five tasks, four times each; each rollout is scored and saved.

    python scripts/demo.py [model configuration] [name=value …]

It shows the command, runs it, and then shows the rewards of each task, one rollout, and what to type next. Another
model's configuration, or more parameters, may be given.
"""

import contextlib
import io
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from nemo_gym.cli import console
from nemo_gym.cli.main import main as run_command
from nemo_gym.errors import ExitCode
from nemo_gym.view.transcript import render_transcript

MODEL: Final = "responses_api_models/local_model/configs/local_model.yaml"
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
ng eval run --resources-server format_following --model-type local_model --num-repeats 4 --max-output-tokens 100 \\
    -i resources_servers/format_following/data/example.jsonl -a format_following_simple_agent -o results/format.jsonl

# your own endpoint: OpenAI, vLLM, SGLang, llama.cpp, ...
ng eval run --resources-server calculator --model-type openai_model \\
    --model-url http://127.0.0.1:8000/v1 --model-api-key none --model my-model \\
    -i resources_servers/calculator/data/example.jsonl -a calculator_simple_agent -o results/mine.jsonl"""

Record = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Run the demonstration and return the exit code of the collection."""
    # A second demonstration keeps the rollouts of the first in a folder beside its own.
    again = ["+overwrite=true"] if OUTPUT.exists() else []
    command = collection(*arguments, *again)
    console.emit(f"{INTRODUCTION}\n\n{heading('This runs')}\n{shown(command)}\n")
    # The command writes its metrics twice: for people to stderr, and as JSON to stdout. People are enough here.
    with contextlib.redirect_stdout(io.StringIO()):
        code = run_command(command)
    if code not in {ExitCode.OK, ExitCode.FAILURES}:
        return code
    records = [json.loads(line) for line in OUTPUT.read_text("utf-8").splitlines()]
    if records:
        console.emit(f"\n{heading('Rewards of each task, one for each attempt')}\n{rewards_by_task(records)}")
        console.emit(f"\n{heading('One rollout')}\n{render_transcript(worth_reading(records), width=WIDTH)}")
    console.emit(f"\n{heading('What to type next')}\n{NEXT}")
    return code


def collection(*arguments: str) -> list[str]:
    """Build the command line: an optional configuration of a model, then parameters."""
    names_model = bool(arguments) and "=" not in arguments[0]
    model, more = (arguments[0], arguments[1:]) if names_model else (MODEL, arguments)
    return [
        "ng_collect_rollouts",
        f"+config_paths=[resources_servers/calculator/configs/calculator.yaml,{model}]",
        "+agent_name=calculator_simple_agent",
        "+input_jsonl_fpath=resources_servers/calculator/data/example.jsonl",
        f"+output_jsonl_fpath={OUTPUT}",
        "+num_repeats=4",
        "+responses_create_params.temperature=0.7",
        "+responses_create_params.max_output_tokens=100",
        *more,
    ]


def shown(command: Sequence[str]) -> str:
    """Write a command line as a person would type it, one argument a line."""
    return " \\\n    ".join(shlex.quote(word) for word in command)


def rewards_by_task(records: Iterable[Record]) -> str:
    """List the tasks, each with its question and the reward of each of its rollouts."""
    tasks: dict[int, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record["_ng_task_index"], record["_ng_rollout_index"])):
        tasks.setdefault(record["_ng_task_index"], []).append(record)
    rows = [
        (str(task), rollouts[0]["question"], "  ".join(f"{rollout['reward']:g}" for rollout in rollouts))
        for task, rollouts in tasks.items()
    ]
    return console.columns(rows)


def worth_reading(records: Sequence[Record]) -> Record:
    """Pick a rollout that was right and used the tool, if there is one."""
    return max(records, key=lambda record: (record["reward"] > 0, record["used_calculator"]))


def heading(text: str) -> str:
    """Make a line that stands out on a terminal and reads as a heading elsewhere."""
    return console.paint(f"{text}:", "bold")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
