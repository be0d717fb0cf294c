"""One rollout, and two beside each other, in a real browser."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

Ask = Callable[[str, str], Any]
SEVERAL_CALLS = 3  # the repeat of task 0 that calls its tools more than once


class Special(NamedTuple):
    """Records by name, and where each is shown."""

    records: dict[str, Any]
    places: dict[str, str]


def with_calls(ask: Ask, address: str) -> str:
    return str(ask(address, "rollouts?filter=tool_calls%20%3E%3D%202%20and%20task%20%3D%3D%200")["rows"][0]["id"])


def test_a_rollout_is_read_from_top_to_bottom(page: Any, one_run: str, ask: Ask) -> None:
    rollout = with_calls(ask, one_run)
    record = ask(one_run, f"rollout/{rollout}")["record"]
    page.go(f"{one_run}#view=table&rollout={rollout}")
    page.see("Task 0", "h1")
    assert page.text(".reward.large") == f"{record['reward']:g}"
    page.see(record["expected_answer"], ".scores")
    page.see("model output from here on")
    page.wait("document.querySelector('.prose math mfrac, .prose math mrow') !== null", "mathematics")
    calls = sum(item["type"] == "function_call" for item in record["response"]["output"])
    boxes, results, apart, [transcript] = page.look(".call-box", ".call-result", ".step.result", ".transcript")
    assert len(boxes) == len(results) == calls
    assert apart == []  # every result is with its call
    assert "turn 1" in transcript


@pytest.fixture(scope="module")
def special(serve: Any, make: Any, tmp_path_factory: pytest.TempPathFactory) -> Special:
    """A file of records that each have something special."""
    long, timed, whole, broken = (make.rollout(0, SEVERAL_CALLS, tokens=True, timing=True) for _ in range(4))
    long["response"]["output"][-1]["content"][0]["text"] = "\n".join(f"line {n}" for n in range(3000))
    broken["response"]["output"][-1]["prompt_token_ids"][3] += 1
    call = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"key": "zebra"}'}}
    output = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "striped"},
        {"role": "assistant", "content": "<think>stripes</think>A zebra is **striped**."},
    ]
    records = {"long": long, "timed": timed, "whole": whole, "broken": broken, "old": {"reward": 1.0, "output": output}}
    beside = {"parent": None, "reason": "new_conversation", "thread": "searcher", "input": "odd", "output": output}
    records["delegated"] = {"reward": 0.5, "output": output[2:], "traces": [{"response": True}, beside]}
    path = tmp_path_factory.mktemp("special") / "special.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records.values()))
    address = serve(path)
    return Special(records, {name: f"{address}#view=table&rollout=0.{row}" for row, name in enumerate(records)})


def test_calls_beside_the_response_are_unfolded_when_asked_for(page: Any, special: Special) -> None:
    page.go(special.places["delegated"])
    page.see("trace 1 · searcher · new conversation", ".transcript")
    assert "striped" in page.text(".transcript")
    assert page.look(".call-box") == [[]]
    page.click(".hidden-steps", "calls that are not in the response")
    page.see("lookup", ".call-box")


def test_reasoning_and_long_texts_are_folded(page: Any, special: Special) -> None:
    page.go(special.places["long"])
    page.see("line 0", ".transcript")
    assert "line 2999" not in page.text(".transcript")
    page.click(".fold-toggle", "Show all")
    page.see("line 2999", ".transcript")
    assert "carry is the most likely" not in page.text(".transcript")
    page.click(".reasoning-toggle")
    page.see("carry is the most likely", ".transcript")


def test_json_opens_and_closes_and_the_record_can_be_copied(page: Any, one_run: str, ask: Ask) -> None:
    page.go(f"{one_run}#view=table&rollout=0.0&tab=raw")
    page.wait("document.querySelectorAll('.tree-branch').length > 2")
    before = page.count(".tree-line")
    page.click(".tree-inner .tree-toggle", "response:")
    page.wait(f"document.querySelectorAll('.tree-line').length > {before}")
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.click("button", "Copy JSON")
    assert json.loads(page.wait("window.copied")) == ask(one_run, "rollout/0.0")["record"]


def test_tokens_are_coloured_by_likelihood_and_breaks_are_marked(page: Any, special: Special) -> None:
    page.go(f"{special.places['whole']}&tab=tokens")
    page.see("the context continues in every call")
    items = special.records["whole"]["response"]["output"]
    assert page.count(".sampled .lp") == sum(len(item.get("generation_token_ids", [])) for item in items)
    assert page.evaluate("new Set([...document.querySelectorAll('.sampled .lp')].map((one) => one.className)).size") > 3
    page.go(special.places["broken"])
    page.click(".tab-bar a", "context breaks")
    page.see("The context breaks at token 3")


def test_recorded_times_are_a_waterfall(page: Any, special: Special) -> None:
    page.go(special.places["timed"])
    page.click(".tab-bar button", "Timing")
    page.wait(f"document.querySelectorAll('.step-bar').length === {len(special.records['timed']['timing'])}")


def test_chat_messages_of_old_files_are_read_as_well(page: Any, special: Special) -> None:
    page.go(special.places["old"])
    page.see("A zebra is striped.", ".prose")
    calls, roles = page.look(".call-box", ".role")
    assert calls == ['lookup(key="zebra")\n→\nstriped']
    assert roles == ["call", "reasoning", "assistant"]


def test_a_failed_rollout_says_why(page: Any, one_run: str, ask: Ask) -> None:
    page.go(f"{one_run}#view=table&rollout=0.f0")
    page.wait("document.querySelector('.failure') !== null")
    record = ask(one_run, "rollout/0.f0")["record"]
    [failure], [reward] = page.look(".failure", ".reward.large")
    assert record["error_message"] in failure
    assert reward == "failed"


def test_two_rollouts_side_by_side_with_their_first_difference(page: Any, one_run: str, ask: Ask) -> None:
    group = next(group for group in ask(one_run, "groups?by=task")["groups"] if 0 < group["mean"] < 1)
    page.go(f"{one_run}#view=groups&rollout={group['rollouts'][0]['id']}")
    page.wait("document.querySelector('.repeats') !== null")
    page.press("c")
    page.see("first difference")
    titles, (left, right) = page.look(".pair.heads h1", ".pairs .pair:last-child .side")
    assert len(titles) == 2
    assert left != right


def test_two_prompts_that_differ_are_read_side_by_side(page: Any, serve: Any, tmp_path: Path) -> None:
    for name, ask_for in (("first", "a limerick"), ("second", "a sonnet")):
        row = {
            "_ng_task_index": 0,
            "_ng_rollout_index": 0,
            "reward": 1.0,
            "responses_create_params": {
                "instructions": "Be brief.",
                "input": [{"role": "user", "content": f"Please write {ask_for}."}],
            },
            "response": {"output": [{"type": "message", "role": "assistant", "content": f"This is {ask_for}."}]},
        }
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    page.go(f"{serve(tmp_path / 'first.jsonl', tmp_path / 'second.jsonl')}#view=compare&a=0.0&b=1.0")
    page.see("the prompts differ")
    heads, sides, marks = page.look(".pair-head", ".pairs .pair:last-child .side", ".marked mark")
    assert "first.jsonl" in heads[0]
    assert "second.jsonl" in heads[1]
    assert "Please write a limerick." in sides[0]
    assert "Please write a sonnet." in sides[1]
    assert marks == ["limerick", "sonnet"]
    assert [" ".join(side.split("MODEL OUTPUT")[-1].split()) for side in sides] != sides


def test_two_runs_are_paired_by_task_worst_first(page: Any, two_runs: str, ask: Ask) -> None:
    page.go(f"{two_runs}#view=compare")
    page.wait("document.querySelectorAll('.run-task').length > 0")
    told = ask(two_runs, "compare_runs?a=0&b=1&sort=change")
    first = "document.querySelector('.run-name').textContent"  # perhaps outside of the window: nothing to be seen there
    tasks, [figures] = page.look(".run-task", ".figures")
    assert len(tasks) == told["total"]
    assert f"{abs(told['difference']):.3f}" in figures
    assert page.evaluate(first) == f"task {told['tasks'][0]['key']}"
    top = "document.querySelector('.run-list').getBoundingClientRect().top"
    before = page.evaluate(top)
    page.click(".choice button", "best first")
    best = ask(two_runs, "compare_runs?a=0&b=1&sort=-change")["tasks"][0]["key"]
    page.wait(f"{first} === 'task {best}'")
    assert page.evaluate(top) == before  # the panel above was there before the list, which nothing moves
    page.click(".run-link")
    page.wait("document.querySelectorAll('.pair.heads h1').length === 2")


@pytest.mark.parametrize(
    ("search", "marked"),
    [
        ("striped", ["striped", "striped"]),
        ('"zebra is striped"', ["zebra is striped"]),  # a phrase, across the elements of its text
        ('"a zebra" STRIPES', ["A zebra", "stripes"]),
        ("is", ["is"]),  # not the letters inside of other words
        ('"is stri"', []),
        ("zébra", ["zebra", "zebra"]),
    ],
)
def test_what_a_search_finds_is_marked_in_the_conversation(
    page: Any, special: Special, search: str, marked: list[str]
) -> None:
    page.go(f"{special.places['old']}&search={quote(search)}")
    page.click(".reasoning-toggle")
    page.see("stripes", ".transcript")
    marks = "[...(CSS.highlights.get('found') ?? [])].map(String)"
    page.until(lambda: sorted(page.evaluate(marks)) == sorted(marked), f"{marked} to be marked")
