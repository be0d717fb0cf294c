"""The demonstration: what `make demo` shows, and how its picture is made. The mock endpoint stands in for the model."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from nemo_gym.api.runs import PlannedTasks, Rollout
from nemo_gym.schemas.record import Record
from tests.forked_commands import ForkedCommands, Ran

if TYPE_CHECKING:
    from conftest import MockModel

ROOT = Path(__file__).parent.parent
LONGEST_PICTURE = 25


def load(name: str) -> ModuleType:
    spec = spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


demo, record_demo = load("demo"), load("record_demo")


RunDemo = Callable[..., Ran]


@pytest.fixture
def run_demo(tmp_path: Path, mock_model: "MockModel", commands: ForkedCommands) -> RunDemo:
    endpoint = ("--model", "openai:mock", "--base-url", mock_model.base_url, "--api-key", "none")

    def run(*more: str) -> Ran:
        return commands.run("python", str(ROOT / "scripts/demo.py"), *endpoint, *more, folder=tmp_path)

    return run


def test_it_collects_five_tasks_four_times_and_shows_what_there_is(
    tmp_path: Path, run_demo: RunDemo, commands: ForkedCommands
) -> None:
    done = run_demo()

    assert done.code == 0, done.err
    rollouts = (tmp_path / "results/demo/rollouts.jsonl").read_text().splitlines()
    keys = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in map(json.loads, rollouts)}
    assert keys == {(task, repeat) for task in range(5) for repeat in range(4)}
    assert demo.shown("openai:mock") in done.out
    assert "20 rollouts in results/demo/rollouts.jsonl, mean reward 0" in done.out
    assert "What is 95% of 200?" in done.out
    assert "model output from here on" in done.out
    assert demo.NEXT in done.out
    assert "Collecting rollouts: 100%" in done.err
    # Once more: what is there does not stand in the way.
    assert run_demo().code == 0
    viewer = next(line for line in demo.NEXT.splitlines() if line.startswith("ng_viewer"))
    assert commands.run(*shlex.split(viewer), "+export_html=page.html", folder=tmp_path).code == 0
    assert "What is 95% of 200?" in (tmp_path / "page.html").read_text("utf-8")


def test_the_call_that_it_shows_is_the_one_in_the_readme() -> None:
    assert demo.shown("local") in (ROOT / "README.md").read_text("utf-8").splitlines()


def test_a_mistake_ends_it_before_there_is_anything_to_show(run_demo: RunDemo) -> None:
    done = run_demo("--model", "openai:")

    assert done.code == 1
    assert done.err.startswith("error: 'openai:' names no model\n\nhint: ")
    assert demo.NEXT not in done.out


def test_what_it_says_to_type_next_can_be_typed(
    tmp_path: Path, mock_model: "MockModel", commands: ForkedCommands
) -> None:
    endpoint = f"--model openai:mock --model-url {mock_model.base_url} --model-api-key none"
    text = demo.NEXT.replace("\\\n", " ").replace("--model local", endpoint)
    lines = text.replace("http://127.0.0.1:8000/v1", mock_model.base_url).splitlines()
    for words in (shlex.split(line) for line in lines if line.startswith("ng ")):
        done = commands.run(*words, folder=tmp_path)
        assert done.code == 0, done.err
    assert {path.name for path in (tmp_path / "results").glob("*.jsonl")} >= {"format.jsonl", "mine.jsonl"}


def rollout(reward: float, *, used: bool) -> Rollout:
    return Rollout(Record({"reward": reward, "used_calculator": used}), PlannedTasks(Path("none.jsonl")))


def test_it_shows_a_rollout_that_was_right_and_used_the_tool() -> None:
    best = rollout(1.0, used=True)
    assert demo.worth_reading([rollout(0.0, used=True), rollout(1.0, used=False), best]) is best
    only = rollout(0.0, used=False)
    assert demo.worth_reading([only]) is only


# ---- the picture -----------------------------------------------------------------------------------------------------
def shown(text: str) -> list[str]:
    screen = record_demo.Screen(columns=20)
    screen.feed(text)
    return [record_demo.text_of(line) for line in screen.lines]


def test_a_progress_bar_leaves_only_its_last_state() -> None:
    assert shown("bar 10%\rbar 100%\r\n") == ["bar 100%", ""]
    assert shown("longer\r\x1b[Kshort") == ["short"]
    assert shown("one\r\ntwo\x1b[A\rONE") == ["ONE", "two"]


def test_long_lines_wrap_and_colours_are_kept_apart_from_the_text() -> None:
    assert shown("x" * 21 + "\x1b[1;32mgreen\x1b[0m") == ["x" * 20, "xgreen"]


def test_the_end_is_left_out() -> None:
    screen = record_demo.Screen()
    screen.feed("start\r\nresult\r\n\r\nrest")

    assert [record_demo.text_of(line) for line in record_demo.until(screen.lines, "rest")] == ["start", "result"]


def test_spaces_are_kept_in_every_text_of_the_picture() -> None:
    screen = record_demo.Screen()
    screen.feed("1  0  1\r\n\x1b[1mbold  text\x1b[0m")
    svg = ET.fromstring(record_demo.draw(screen.lines, title="title"))

    texts = list(svg.iter("{http://www.w3.org/2000/svg}text"))
    # Browsers that show the file as an image ignore the attribute on an element around the text.
    assert all(text.get("{http://www.w3.org/XML/1998/namespace}space") == "preserve" for text in texts)
    assert "1  0  1" in ["".join(text.itertext()) for text in texts]


def test_the_picture_is_valid_and_holds_hostile_text_as_text() -> None:
    screen = record_demo.Screen()
    screen.feed("\x1b[31m<script>&\x1b[0m  plain")
    svg = ET.fromstring(record_demo.draw(screen.lines, title="a < b"))

    assert ["".join(text.itertext()) for text in svg.iter("{http://www.w3.org/2000/svg}text")] == [
        "a < b",
        "<script>&",
        "plain",
    ]


WARNS_DURING_A_RUN = """
import logging, sys
from pathlib import Path
from nemo_gym.cli import console
from nemo_gym.rollouts.progress import Progress
from nemo_gym.rollouts.store.history import AttemptPolicy
from nemo_gym.rollouts.store.plan_file import PlanOnDisk

plan = PlanOnDisk(Path("plan"), AttemptPolicy(), planned=9)
for position in range(9):
    plan.owe(position, "alpha")
with console.logs():
    progress = Progress(plan, sys.stderr)
    for number in range(3):
        logging.getLogger("nemo_gym").warning("number %d", number)
    progress.close()
"""


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_a_warning_during_a_run_is_a_line_of_its_own_above_the_bar(columns: int) -> None:
    screen = record_demo.Screen(columns=columns)
    assert record_demo.record([sys.executable, "-c", WARNS_DURING_A_RUN], screen) == 0
    *lines, bar, last = [record_demo.text_of(line).rstrip() for line in screen.lines]
    assert lines == ["warning: number 0", "warning: number 1", "warning: number 2"]
    assert bar.startswith("Collecting rollouts:   0%|")
    assert last == ""


def test_a_command_is_recorded_on_a_terminal() -> None:
    screen = record_demo.Screen()
    program = "import sys, os; print(sys.stdout.isatty(), os.get_terminal_size().columns); sys.exit(3)"

    code = record_demo.record([sys.executable, "-c", program], screen)

    assert code == 3
    assert record_demo.text_of(screen.lines[0]) == f"True {record_demo.COLUMNS}"


def test_the_picture_in_the_repository_shows_a_finished_run() -> None:
    svg = ET.parse(ROOT / "docs/images/demo.svg").getroot()
    shown = [*svg.iter("{http://www.w3.org/2000/svg}text")]
    text = "\n".join("".join(element.itertext()) for element in shown)
    assert len({element.get("y") for element in shown[1:]}) <= LONGEST_PICTURE
    assert "$" in text
    assert re.search(r"Collecting rollouts: 100%.*20/20", text)
    assert "calculator(expression=" in text
