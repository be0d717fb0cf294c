"""The rows of each format."""

import json

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.exporting.dpo import best_with_worst
from nemo_gym.exporting.sft import UnfitError
from nemo_gym.exporting.tokens import only_span, token_spans

QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add 0."}]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
ANSWER = [
    {"role": "assistant", "content": "<think>Let me add.</think>", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    {"role": "assistant", "content": "The sum is 0."},
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}


def test_sft_rows_are_messages_with_tools_calls_and_results(export):
    assert export([export.make()]) == [{"messages": QUESTION + ANSWER, "tools": TOOLS}]
    split = export([export.make()], shape="prompt_completion")
    assert split == [{"prompt": QUESTION, "completion": ANSWER, "tools": TOOLS}]


def test_reasoning_and_arguments_take_the_form_that_is_asked_for(export):
    row = export([export.make()], reasoning="drop", arguments="object")[0]
    assert row["messages"][2] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [CALL | {"function": {"name": "add", "arguments": {"a": 1}}}],
    }
    row = export([export.make()], reasoning="reasoning_content")[0]
    assert (row["messages"][2]["content"], row["messages"][2]["reasoning_content"]) == ("", "Let me add.")


def test_what_a_format_can_not_hold_is_dropped_and_counted(export, tmp_path):
    image, odd = export.make(1), export.make(2)
    image["responses_create_params"]["input"] = [{"role": "user", "content": [IMAGE]}]
    odd["response"]["output"].append({"type": "computer_call", "id": "x"})
    rows = export([export.make(), image, odd])
    assert [row["messages"][1]["content"] for row in rows] == [
        "Add 0.",
        [{"type": "image_url", "image_url": {"url": IMAGE["image_url"]}}],
    ]
    assert export.dropped() == {"has items of type computer_call": 1}
    pytest.importorskip("pyarrow", reason="tables need the extra 'export'")
    export([export.make(), image], output=str(tmp_path / "rows.parquet"))
    assert export.dropped() == {"has images or files, which a table can't hold": 1}


def test_sharegpt_speakers_take_turns(export):
    row = export([export.make()], format="sharegpt", reasoning="drop")[0]
    assert [turn["from"] for turn in row["conversations"]] == ["human", "function_call", "observation", "gpt"]
    assert json.loads(row["conversations"][1]["value"]) == {"name": "add", "arguments": {"a": 1}}
    assert row["system"] == "Be brief."
    [tool] = json.loads(row["tools"])
    assert tool == {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}


def test_sharegpt_keeps_what_was_said_before_a_call(export):
    row = export([export.make()], format="sharegpt")[0]
    said, _, call = row["conversations"][1]["value"].partition("<tool_call>")
    assert said == "<think>Let me add.</think>"
    assert json.loads(call.removesuffix("</tool_call>")) == {"name": "add", "arguments": {"a": 1}}
    with pytest.raises(ValueError, match="sharegpt has no field for reasoning"):
        export([export.make()], format="sharegpt", reasoning="reasoning_content")


def test_sharegpt_conversations_end_with_the_model_and_alternate(export):
    unanswered = export.make(1)
    del unanswered["response"]["output"][3]
    twice = export.make(2)
    twice["responses_create_params"]["input"] *= 2
    rows = export([export.make(0), unanswered, twice], format="sharegpt")
    assert [row["conversations"][-1]["from"] for row in rows] == ["gpt", "function_call"]
    assert export.dropped() == {"has speakers who do not take turns, as they must in sharegpt": 1}


def test_token_rows_hold_what_was_sampled_and_mask_the_rest(export):
    row = export([export.make()], format="sft_tokens")[0]
    assert row["input_ids"] == [1, 2, 0, 10, 11, 3, 20]
    assert row["labels"] == [-100, -100, -100, 10, 11, -100, 20]
    assert row["completion_mask"] == [0, 0, 0, 1, 1, 0, 1]


def test_a_history_that_was_rewritten_is_dropped_or_becomes_several_sequences(export):
    broken = export.make(1)
    broken["response"]["output"][3]["prompt_token_ids"] = [1, 2, 1, 99, 3]
    rollouts = [export.make(), broken]
    assert len(export(rollouts, format="sft_tokens")) == 1
    assert export.dropped() == {"continuity": 1}
    rows = export(rollouts, format="sft_tokens", on_break="split")
    assert [row["labels"] for row in rows[1:]] == [[-100] * 3 + [10, 11], [-100] * 5 + [20]]
    assert len(export(rollouts, format="rl", continuity=False)) == 1


def test_token_rows_name_their_task_if_asked_to(export):
    (plain,), (labelled,) = (export([export.make(4)], format="sft_tokens", metadata=asked) for asked in (False, True))
    assert ("task" in plain, labelled["task"]) == (False, 4)


def test_token_formats_refuse_rollouts_without_token_ids(export):
    bare = export.make()
    for item in bare["response"]["output"]:
        item.pop("generation_token_ids", None)
    with pytest.raises(ConfigError, match="1 by “token ids”") as raised:
        export([bare], format="rl")
    assert "return_token_id_information" in (raised.value.hint or "")
    unscored = export.make(1)
    unscored["response"]["output"][3]["generation_log_probs"] = None
    assert len(export([export.make(), unscored], format="rl")) == 1
    assert export.dropped() == {"log-probabilities": 1}


def test_rl_rows_carry_advantages_relative_to_their_group(export):
    rewards = {(0, 0): 1.0, (0, 1): 0.0, (1, 0): 0.5, (1, 1): 0.5}
    rows = export([export.make(*key, reward) for key, reward in rewards.items()], format="rl")
    assert [row["advantage"] for row in rows] == [1.0, -1.0, 0.0, 0.0]
    assert rows[0]["group"] == rows[1]["group"] != rows[2]["group"]
    assert rows[0]["log_probs"] == [0, 0, 0, -0.5, -0.25, 0, -1.0]
    assert rows[0]["loss_mask"] == [0, 0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (
            "verl",
            {"data_source", "prompt", "reward_model", "extra_info", "uid", "prompts", "responses", "response_mask"},
        ),
        ("skyrl", {"prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_logprobs"}),
        ("openrlhf", {"sequences", "attention_mask", "action_mask", "rollout_log_probs", "rewards", "advantages"}),
    ],
)
def test_rl_rows_have_the_names_of_trainers(export, names, fields):
    rows = export([export.make(0, n, float(n)) for n in range(2)], format="rl", names=names)
    assert fields <= set(rows[0])
    if names != "openrlhf":
        answer = rows[1].get("responses") or rows[1]["response_ids"]
        assert answer == [10, 11, 3, 21]
    if names == "verl":
        assert rows[1]["token_level_scores"] == [0.0, 0.0, 0.0, 1.0]
        assert rows[1]["advantages"] == [1.0, 1.0, 0.0, 1.0]
    if names == "openrlhf":  # its masks have no entry for the first token, which nothing predicts
        assert rows[1]["sequences"] == [1, 2, 0, 10, 11, 3, 21]
        assert rows[1]["action_mask"] == [0, 0, 1, 1, 0, 1]
        assert rows[1]["rollout_log_probs"] == [0.0, 0.0, -0.5, -0.25, 0.0, -1.0]


def test_rows_for_verl_say_which_split_they_are_in(export, tmp_path):
    rows = export([export.make(n) for n in range(20)], format="rl", names="verl", validation=0.5)
    held_out = export.rows(tmp_path / "rows_validation.jsonl")
    assert {row["extra_info"]["split"] for row in rows} == {"train"}
    assert {row["extra_info"]["split"] for row in held_out} == {"validation"}


def test_dpo_pairs_are_of_one_task_the_widest_margins_first(export):
    rewards = {0: (0.0, 1.0, 0.5, 0.25), 1: (1.0, 1.0), 2: (0.5, 0.6)}
    rollouts = [export.make(task, n, reward) for task, many in rewards.items() for n, reward in enumerate(many)]
    rows = export(rollouts, format="dpo", min_margin=0.2, metadata=True)
    assert [(row["score_chosen"], row["score_rejected"]) for row in rows] == [(1.0, 0.0)]
    assert rows[0]["prompt"] == QUESTION
    assert rows[0]["chosen"][-1]["content"] == "The sum is 1."
    assert rows[0]["rejected"][-1]["content"] == "The sum is 0."
    assert export.dropped() == {"in no pair": 6}
    rows = export(rollouts, format="dpo", pairs="all", pairs_per_task=3, metadata=True)
    margins = [row["score_chosen"] - row["score_rejected"] for row in rows]
    assert margins == pytest.approx([1.0, 0.75, 0.5, 0.1])
    # The best one is in three pairs and counts once.
    assert "written: 4 rows from 6 rollouts of 2 tasks" in export.report.text()
    assert len(export(rollouts, format="dpo", pairs_per_task=2)) == 3


def test_pairs_can_be_held_to_similar_length(export):
    long = export.make(0, 1, 0.0, response={"usage": {"output_tokens": 30}})
    rollouts = [export.make(0, 0, 1.0), long, export.make(0, 2, 0.5)]
    rows = export(rollouts, format="dpo", pairs="all", pairs_per_task=9, max_length_ratio=2, metadata=True)
    assert [(row["score_chosen"], row["score_rejected"]) for row in rows] == [(1.0, 0.5)]


def test_kto_rows_have_a_thumb(export):
    rows = export([export.make(0, 0, 1.0), export.make(0, 1, 0.5)], format="kto")
    assert [row["label"] for row in rows] == [True, False]
    assert rows[0]["completion"] == ANSWER


def test_a_trajectory_has_steps_with_calls_and_what_they_returned(export):
    row = export([export.make()], format="atif")[0]
    assert [(step["step_id"], step["source"]) for step in row["steps"]] == [
        (1, "system"),
        (2, "user"),
        (3, "agent"),
        (4, "agent"),
    ]
    call = row["steps"][2]
    assert call["reasoning_content"] == "Let me add."
    assert call["tool_calls"] == [{"tool_call_id": "c1", "function_name": "add", "arguments": {"a": 1}}]
    assert call["observation"] == {"results": [{"source_call_id": "c1", "content": "3"}]}
    assert call["metrics"]["completion_token_ids"] == [10, 11]
    assert row["agent"]["model_name"] == "tiny"


def test_the_validator_of_the_trajectory_format_accepts_every_row(export):
    trajectories = pytest.importorskip("harbor.models.trajectories", reason="needs harbor, which has the validator")
    for row in export([export.make(n) for n in range(3)], format="atif"):
        trajectories.Trajectory.model_validate(row)


def changed(rollout, change):
    change(rollout["responses_create_params"], rollout["response"]["output"])
    return rollout


@pytest.mark.parametrize("form", ["sft", "sharegpt", "kto", "atif", "sft.parquet"])
@pytest.mark.parametrize(
    "change",
    [
        lambda asked, _: asked.update(input=5),
        lambda asked, _: asked.update(input=["Add."]),
        lambda asked, _: asked.update(input=[{"role": "user", "content": 9}]),
        lambda asked, _: asked.update(instructions=[1]),
        lambda _, output: output[0].update(summary=5),
        lambda _, output: output[1].update(arguments=None),
        lambda _, output: output[2].update(output={"sum": 3}),
        lambda _, output: output[3].update(content=[None]),
    ],
)
def test_rollouts_of_the_wrong_types_are_dropped_and_counted(export, tmp_path, form, change):
    kind, _, container = form.partition(".")
    if container:
        pytest.importorskip("pyarrow", reason="tables need the extra 'export'")
    output = str(tmp_path / f"rows.{container or 'jsonl'}")
    export([export.make(0), changed(export.make(1), change)], format=kind, output=output)
    tolerated = kind == "atif" and export.dropped() == {}  # a trajectory has less to say about types
    assert tolerated or sum(export.dropped().values()) == 1


@pytest.mark.parametrize("form", ["sft", "sharegpt", "kto"])
def test_tools_that_are_not_valid_are_a_reason_to_drop(export, form):
    export([export.make(0), changed(export.make(1), lambda asked, _: asked.update(tools=["add"]))], format=form)
    assert export.dropped() == {"has tools that are not valid": 1}


def scores(rows):
    return [(row["score_chosen"], row["score_rejected"]) for row in rows]


def test_best_and_worst_meet_and_nobody_twice_while_all_pairs_are_more(export):
    rollouts = [export.make(0, n, reward) for n, reward in enumerate((0.0, 1.0, 0.5, 0.25, 0.75))]
    asked = {"format": "dpo", "metadata": True, "pairs_per_task": 20}
    assert scores(export(rollouts, pairs="best_worst", **asked)) == [(1.0, 0.0), (0.75, 0.25)]
    assert len(export(rollouts, pairs="all", **asked)) == 10


@pytest.mark.parametrize("preset", [None, "nemo"])
def test_a_margin_of_exactly_the_least_one_is_enough(export, preset):
    rollouts = [export.make(0, 0, 0.25), export.make(0, 1, 0.75)]
    preset = {"preset": preset} if preset else {}
    assert len(export(rollouts, format="dpo", min_margin=0.5, **preset)) == 1
    with pytest.raises(ConfigError, match="no rollout is left"):
        export(rollouts, format="dpo", min_margin=0.5001, **preset)


def test_the_rule_of_the_tutorial_takes_tasks_with_two_rollouts_only(export):
    counts = {0: 1, 1: 2, 2: 3}
    rollouts = [export.make(task, n, float(n)) for task, count in counts.items() for n in range(count)]
    rows = export(rollouts, format="dpo", preset="nemo")
    assert [row["quality_difference"] for row in rows] == [1.0]
    (row,) = export([export.make(0, 0, 0.25), export.make(0, 1, 0.75)], format="dpo", preset="nemo")
    assert row["quality_difference"] == 0.5


@pytest.mark.parametrize("form", ["dpo", "kto"])
def test_preferences_name_their_tools_and_their_task_if_asked_to(export, form):
    rollouts = [export.make(4, 0, 0.0), export.make(4, 1, 1.0)]
    plain, labelled = export(rollouts, format=form), export(rollouts, format=form, metadata=True)
    assert all(row["tools"] for row in plain)
    assert all("task" not in row for row in plain)
    assert {row["task"] for row in labelled} == {4}


def test_equal_rewards_are_no_preference(export):
    with pytest.raises(ConfigError, match="no rollout is left"):
        export([export.make(0, n, 1.0) for n in range(2)], format="dpo", min_margin=0.0)


def test_lengths_of_exactly_the_ratio_are_similar(export):
    def of(number, reward, tokens):
        return export.make(0, number, reward, response={"usage": {"output_tokens": tokens}})

    assert len(export([of(0, 1.0, 10), of(1, 0.0, 20)], format="dpo", max_length_ratio=2)) == 1
    with pytest.raises(ConfigError, match="no rollout is left"):
        export([of(0, 1.0, 10), of(1, 0.0, 21)], format="dpo", max_length_ratio=2)
    # Nothing written counts as one token.
    assert len(export([of(0, 1.0, 0), of(1, 0.0, 2)], format="dpo", max_length_ratio=2)) == 1
    with pytest.raises(ConfigError, match="no rollout is left"):
        export([of(0, 1.0, 0), of(1, 0.0, 3)], format="dpo", max_length_ratio=2)


def test_the_threshold_itself_is_a_thumb_up(export):
    rows = export([export.make(0, 0, 0.5), export.make(0, 1, 0.49)], format="kto", pass_threshold=0.5)
    assert [row["label"] for row in rows] == [True, False]


@pytest.mark.parametrize("ids", [["a"], [1.5], [True], "12", [None], [[1]]])
@pytest.mark.parametrize("kind", ["rl", "sft_tokens"])
def test_prompt_ids_that_are_not_numbers_stay_out(export, kind, ids):
    odd = export.make(0, 0)
    odd["response"]["output"][1]["prompt_token_ids"] = ids
    rows = export([odd, export.make(1, 0)], format=kind)
    assert len(rows) == 1
    assert sum(export.dropped().values()) == 1


def test_a_history_that_was_rewritten_is_two_sequences(export):
    rewritten = export.make(0, 0)
    rewritten["response"]["output"][3]["prompt_token_ids"] = [9, 9]
    spans = token_spans(rewritten["response"]["output"])
    assert [span.ids for span in spans] == [[1, 2, 0, 10, 11], [9, 9, 20]]
    assert [span.mask for span in spans] == [[0, 0, 0, 1, 1], [0, 0, 1]]
    assert [span.labels() for span in spans] == [[-100, -100, -100, 10, 11], [-100, -100, 20]]
    assert [span.start for span in spans] == [3, 2]
    with pytest.raises(UnfitError, match="not one sequence"):
        only_span(rewritten["response"]["output"])


def test_every_name_of_an_rl_row_holds_the_tokens_it_is_named_after(export):
    ids, mask, log_probs = [1, 2, 0, 10, 11, 3, 21], [0, 0, 0, 1, 1, 0, 1], [0.0, 0.0, 0.0, -0.5, -0.25, 0.0, -1.0]
    rollouts = [export.make(0, 0, 0.0), export.make(0, 1, 1.0)]
    plain = export(rollouts, format="rl", names="plain")[1]
    assert (plain["input_ids"], plain["loss_mask"], plain["log_probs"]) == (ids, mask, log_probs)
    assert (plain["reward"], plain["advantage"]) == (1.0, 1.0)
    verl = export(rollouts, format="rl", names="verl")[1]
    assert (verl["prompts"], verl["responses"], verl["response_mask"]) == (ids[:3], ids[3:], mask[3:])
    assert verl["rollout_log_probs"] == log_probs[3:]
    assert verl["token_level_scores"] == [0.0, 0.0, 0.0, 1.0]
    assert verl["advantages"] == [1.0, 1.0, 0.0, 1.0]
    skyrl = export(rollouts, format="rl", names="skyrl")[1]
    assert (skyrl["prompt_token_ids"], skyrl["response_ids"], skyrl["loss_masks"]) == (ids[:3], ids[3:], mask[3:])
    assert (skyrl["rollout_logprobs"], skyrl["stop_reasons"]) == (log_probs[3:], "stop")
    openrlhf = export(rollouts, format="rl", names="openrlhf")[1]
    assert (openrlhf["sequences"], openrlhf["attention_mask"]) == (ids, [1] * 7)
    assert (openrlhf["action_mask"], openrlhf["rollout_log_probs"]) == (mask[1:], log_probs[1:])
    assert openrlhf["advantages"] == [0.0, 0.0, 1.0, 1.0, 0.0, 1.0]


def test_the_advantage_is_in_standard_deviations_of_the_task_and_none_without_a_difference(export):
    rewards = [(0, 0.0), (0, 1.0), (1, 0.5), (1, 0.5), (2, 3.0), (2, 5.0), (2, 7.0)]
    rows = export([export.make(task, n, reward) for n, (task, reward) in enumerate(rewards)], format="rl")
    assert [row["advantage"] for row in rows] == pytest.approx([-1, 1, 0, 0, -(1.5**0.5), 0, 1.5**0.5])


def test_a_rollout_that_was_cut_off_says_so(export):
    cut = export.make(0, 0, response={"incomplete_details": {"reason": "max_output_tokens"}})
    status = export.make(1, 0, response={"status": "incomplete"})
    rows = export([cut, status, export.make(2, 0)], format="rl", names="skyrl")
    assert [row["stop_reasons"] for row in rows] == ["length", "length", "stop"]


def test_best_meets_worst_and_nobody_is_used_twice():
    assert list(best_with_worst("abcd")) == [("a", "d"), ("b", "c")]
    assert list(best_with_worst("abc")) == [("a", "c")]
    assert list(best_with_worst("a")) == []
