"""Labels and notes, given with the keyboard in a real browser."""

import json
from pathlib import Path
from typing import Any

LABELLED = 200


def saved_marks(page: Any, path: Path, number: int) -> list[dict[str, Any]]:
    """The marks in the file, once all are saved."""
    page.until(lambda: path.exists() and path.read_bytes().count(b"\n") >= number, f"{number} marks")
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert len(lines) == number
    return lines


def test_two_hundred_rollouts_are_labelled_with_the_keyboard(
    page: Any, serve: Any, make: Any, ask: Any, tmp_path: Path
) -> None:
    make.write_run(tmp_path / "run.jsonl", tasks=LABELLED // 4, repeats=4)
    address = serve(tmp_path / "run.jsonl")
    rows = ask(address, f"rollouts?limit={LABELLED}")["rows"]
    page.go(f"{address}#view=table&rollout={rows[0]['id']}")
    for number, row in enumerate(rows):
        page.wait(f"document.querySelector('.rollout')?.dataset.id === '{row['id']}'")
        page.press("-" if number % 3 else "+")
        label = "bad" if number % 3 else "good"
        page.wait(f"document.querySelector('#mark-{label}').getAttribute('aria-pressed') === 'true'")
        page.press("j")
    lines = saved_marks(page, tmp_path / "run_marks.jsonl", LABELLED)
    assert [line["label"] for line in lines] == ["bad" if number % 3 else "good" for number in range(LABELLED)]
    page.go(f"{address}#view=overview")
    page.see("of 200 labels", ".panels")


def test_an_own_label_and_a_note_are_written_without_the_mouse(
    page: Any, serve: Any, make: Any, ask: Any, tmp_path: Path
) -> None:
    make.write_run(tmp_path / "run.jsonl", tasks=2, repeats=2)
    address = serve(tmp_path / "run.jsonl")
    page.go(f"{address}#view=table&rollout=0.1")
    page.wait("document.querySelector('#mark-label') !== null")
    page.press("m")
    page.call("Input.insertText", text="lucky guess")
    page.press("Enter")
    page.wait("document.activeElement === document.body")
    page.press("M")
    page.call("Input.insertText", text="jumps + from 3 to 7")
    page.press("Enter")
    page.wait("document.activeElement === document.body")
    assert saved_marks(page, tmp_path / "run_marks.jsonl", 2)[1]["label"] == "lucky guess"
    noted = "rollouts?filter=note%20is%20not%20null"
    page.until(lambda: ask(address, noted)["total"] == 1, "the note in the index")
    page.go(f"{address}#view=table&filter={'label%20==%20%22lucky%20guess%22'}&columns=label,note")
    page.see("jumps + from 3 to 7", ".table-view")
    page.see("1 rollout", ".count")
