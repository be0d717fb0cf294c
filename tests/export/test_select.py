"""Which rollouts are exported: rules compose, are counted one by one, and name an example."""

import json
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.exporting.pipeline import export_rollouts
from nemo_gym.exporting.recipe import Recipe

REWARDS = {0: (0.0, 0.0, 0.0, 0.0), 1: (0.0, 1.0, 0.0, 1.0), 2: (1.0, 1.0, 1.0, 1.0), 3: (0.25, 0.5, 0.75, 1.0)}


@pytest.fixture
def rollouts(export):
    return [export.make(task, n, reward) for task, rewards in REWARDS.items() for n, reward in enumerate(rewards)]


def keys(rows):
    return [(row["task"], row["rollout"]) for row in rows]


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({"min_reward": 0.5, "max_reward": 0.75}, [(3, 1), (3, 2)]),
        ({"min_reward": "all", "filter": "reward > 0.6 and task == 3"}, [(3, 2), (3, 3)]),
        ({"success": True, "filter": "task < 2"}, [(1, 1), (1, 3)]),
        ({"success": False, "filter": "task == 1"}, [(1, 0), (1, 2)]),
        ({"first_solved": 1}, [(1, 1), (2, 0), (3, 3)]),
        ({"min_reward": "all", "best_per_task": 2, "mixed_rewards": True}, [(1, 1), (1, 3), (3, 2), (3, 3)]),
        ({"min_reward": "all", "min_solve_rate": 0.5, "max_solve_rate": 0.9}, [(1, 0), (1, 1), (1, 2), (1, 3)]),
        # The solve rate is that of all rollouts, not of those that other rules left.
        ({"max_solve_rate": 0.5, "min_reward": 1}, [(1, 1), (1, 3), (3, 3)]),
        ({"min_reward": "all", "min_turns": 3, "filter": "task == 0"}, []),
        ({"min_reward": "all", "max_tokens": 2, "filter": "task == 0"}, []),
        ({"min_reward": "all", "max_tokens": 3, "filter": "task == 0"}, [(0, n) for n in range(4)]),
        ({"min_reward": "all", "min_tokens": 3, "filter": "task == 0"}, [(0, n) for n in range(4)]),
        ({"min_reward": "all", "min_turns": 2, "max_turns": 2, "filter": "task == 0"}, [(0, n) for n in range(4)]),
    ],
)
def test_rules_compose(export, rollouts, rules, kept):
    if kept:
        assert keys(export(rollouts, metadata=True, **rules)) == kept
    else:
        with pytest.raises(ConfigError, match="no rollout is left of 16"):
            export(rollouts, metadata=True, **rules)


@pytest.mark.parametrize("form", ["sft", "sft_tokens", "sharegpt"])
def test_a_model_is_shown_only_solved_rollouts_to_imitate(export, rollouts, form):
    solved = sum(reward == 1 for rewards in REWARDS.values() for reward in rewards)
    assert len(export(rollouts, format=form)) == solved
    assert export.dropped() == {"min_reward=1": len(rollouts) - solved}
    stated = "solved rollouts, with a reward of 1 or more (+min_reward=0.5 lowers that, +min_reward=all takes every"
    assert stated in export.report.text()
    assert len(export(rollouts, format=form, pass_threshold=0.75)) == solved + 1
    assert len(export(rollouts, format=form, min_reward="all")) == len(rollouts)
    assert len(export(rollouts, format=form, success=False)) == len(rollouts) - solved
    assert "solved rollouts" not in export.report.text()


@pytest.mark.parametrize("form", ["kto", "rl", "atif"])
def test_formats_that_say_how_good_a_rollout_was_take_every_reward(export, rollouts, form):
    assert len(export(rollouts, format=form)) == len(rollouts)


def test_an_export_without_a_solved_rollout_says_how_to_take_others(export):
    with pytest.raises(ConfigError, match="no rollout is left of 1; dropped: 1 by “min_reward=1”") as caught:
        export([export.make(reward=0.5)])
    assert "+min_reward=all" in (caught.value.hint or "")


def test_every_rule_counts_what_it_dropped_and_names_the_first(export, rollouts):
    export(rollouts, min_reward=0.25, max_reward=0.9, best_per_task=1)
    assert export.dropped() == {"min_reward=0.25": 6, "max_reward=0.9": 7, "best_per_task=1": 2}
    assert export.report.drops.examples["max_reward=0.9"].endswith("rollouts.jsonl:6")
    assert "written: 1 row from 1 rollout of 1 task\n" in export.report.text()


@pytest.mark.parametrize(
    ("parameters", "line"),
    [
        ({"format": "sft_tokens"}, "tokens in a row: 7 to 7, median 7, 99 % up to 7"),
        ({"format": "rl", "names": "verl"}, "tokens in a row: 7 to 7, median 7, 99 % up to 7"),
        ({"format": "sft_tokens", "min_reward": "all", "validation": 0.5}, "rollouts of 4 tasks"),
    ],
)
def test_the_report_says_how_long_rows_are(export, rollouts, parameters, line):
    export(rollouts, **parameters)
    assert line in export.report.text()


def test_the_lengths_of_conversations_are_those_of_their_lines(export, tmp_path):
    export([export.make(0, text="short"), export.make(1, text="longer " * 90)])
    lengths = sorted(map(len, (tmp_path / "rows.jsonl").read_bytes().splitlines(keepends=True)))
    assert f"bytes in a row: {lengths[0]} to {lengths[1]:,}, median {lengths[1]:,}" in export.report.text()


def test_rows_without_what_newer_versions_record_are_exported(export):
    said = {"type": "message", "role": "assistant", "content": "Four."}
    old = {"responses_create_params": {"input": "Two and two?"}, "response": {"output": [said]}, "reward": 1}
    rows = export([old], metadata=True)
    assert [message["content"] for message in rows[0]["messages"]] == ["Two and two?", "Four."]
    assert "model: unknown; agent: unknown" in export.report.text()
    with pytest.raises(ConfigError, match=r"2 models: unknown \(1\), tiny \(1\)"):
        export([old, export.make()])


@pytest.mark.parametrize(
    ("lines", "recipe", "hint"),
    [
        ([{"_ng_failure_class": "timeout"}], {}, "+input takes rollout files"),
        ([{"responses_create_params": {"input": "a task"}}], {}, "+input takes rollout files"),
        ([], {}, "the input has no rollouts"),
    ],
    ids=["failures", "tasks", "empty"],
)
def test_files_without_scored_rollouts_are_refused_with_what_to_give_instead(export, lines, recipe, hint):
    with pytest.raises(ConfigError, match="no rollout is left") as raised:
        export(lines, **recipe)
    assert hint in (raised.value.hint or "")


def test_rollouts_without_pairs_are_refused_with_what_pairs_need(export):
    with pytest.raises(ConfigError, match="1 by “in no pair”") as raised:
        export([export.make()], format="dpo")
    assert "+num_repeats" in (raised.value.hint or "")


def test_what_is_not_a_scored_rollout_is_never_a_sample(export, tmp_path):
    good, failed = export.make(), export.make(1, reward=0.0, _ng_failure_class="timeout")
    lines = [good, failed, export.make(2, reward=None), export.make(3, reward=float("nan")), {"reward": 1}, [1], good]
    text = "\n".join(map(json.dumps, lines)) + '\n{"reward": 1.0, "respon'
    (tmp_path / "torn.jsonl").write_text(text)
    recipe = Recipe(input=str(tmp_path / "torn.jsonl"), output=str(tmp_path / "out.jsonl"), format="kto")
    report = export_rollouts(recipe)
    assert report.rows.total() == 1
    assert report.drops.counts == {
        "failed": 1,
        "has no reward": 2,
        "is not a rollout": 1,
        "occurred before": 1,
        "is not a JSON object": 2,
    }
    assert report.lines == 8


def test_answers_that_were_cut_off_are_left_out_of_supervised_data(export):
    cut = export.make(0, 1, response={"incomplete_details": {"reason": "max_output_tokens"}})
    assert len(export([export.make(), cut])) == 1
    assert export.dropped() == {"complete": 1}
    assert len(export([export.make(), cut], complete=False)) == 2


def test_duplicates_are_judged_by_normalised_text_of_the_same_prompt(export):
    texts = ["Four.", "  four ", "Five.", "FOUR!"]
    rollouts = [export.make(0, n, text=text) for n, text in enumerate(texts)]
    rows = export([*rollouts, export.make(1, text="four")], unique=True, metadata=True)
    assert keys(rows) == [(0, 0), (0, 2), (1, 0)]


WORDS = [f"word{n}" for n in range(200)]


def changed(words, count):
    """The text with so many words replaced, evenly spread: each takes five of the runs of five words."""
    places = {n * len(words) // count for n in range(count)} if count else set()
    return " ".join(f"other{n}" if n in places else word for n, word in enumerate(words))


@pytest.mark.parametrize(
    ("replaced", "is_duplicate"),
    # So many replaced words leave 196 - 5 n of 196 runs: similarity (196 - 5 n) / (196 + 5 n).
    [(0, True), (1, True), (2, True), (8, False), (12, False), (40, False)],
)
def test_near_duplicates_are_judged_by_the_share_of_runs_of_words(export, replaced, is_duplicate):
    pytest.importorskip("datasketch", reason="near duplicates need the extra 'export'")
    rollouts = [export.make(0, n, text=changed(WORDS, count)) for n, count in enumerate((0, replaced))]
    rows = export(rollouts, near_duplicates=0.8, metadata=True)
    assert keys(rows) == [(0, 0)] if is_duplicate else [(0, 0), (0, 1)]


def test_near_duplicates_are_alike_in_question_and_answer(export):
    pytest.importorskip("datasketch", reason="near duplicates need the extra 'export'")
    long = " ".join(WORDS)
    asked = {0: long, 1: f"{long} please", 2: changed(WORDS, 30)}
    rollouts = [export.make(task, n, text=text) for task in asked for n, text in enumerate(["Yes.", "No, never."])]
    for rollout in rollouts:
        rollout["responses_create_params"]["input"] = asked[rollout["_ng_task_index"]]
    # A long question in common does not make different answers alike, nor a short answer different questions.
    assert keys(export(rollouts, near_duplicates=0.9, metadata=True)) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert keys(export(rollouts[::-1], near_duplicates=0.9, metadata=True)) == [(2, 1), (2, 0), (1, 1), (1, 0)]


def ask(export, task, question, **more):
    rollout = export.make(task, **more)
    rollout["responses_create_params"]["input"] = [
        {"role": "system", "content": "You are a careful assistant and answer every question in one short sentence."},
        {"role": "user", "content": [{"type": "input_text", "text": question}]},
    ]
    return rollout


def test_what_shares_words_with_held_out_tasks_is_left_out(export, tmp_path):
    held_out = [
        {"responses_create_params": {"input": [{"role": "user", "content": " ".join(WORDS[:20])}]}},
        {"responses_create_params": {"input": "Who wrote Faust?"}},
        {"question": " ".join(WORDS[100:120])},
    ]
    export.save(held_out, tmp_path / "held_out.jsonl")
    questions = [
        " ".join(["Say:", *WORDS[3:16]]).upper(),  # 13 words in a row
        " ".join([*WORDS[:12], "else", *WORDS[13:20]]),  # 12
        "who wrote FAUST",
        "Who wrote Faust, and when did he begin?",
        "unlike",
        "unlike too",
    ]
    rollouts = [ask(export, task, question) for task, question in enumerate(questions)]
    rollouts[4] = ask(export, 4, "unlike", text=" ".join(WORDS[99:114]))  # the answer quotes a held-out task
    given = {"decontaminate": str(tmp_path / "held_out.jsonl"), "metadata": True}
    assert keys(export(rollouts, **given)) == [(1, 0), (3, 0), (5, 0)]
    [(rule, count)] = export.dropped().items()
    assert (rule.startswith("decontaminate="), count) == (True, 3)
    assert keys(export(rollouts, **given, decontaminate_words=8)) == [(3, 0), (5, 0)]


def test_the_template_of_held_out_tasks_is_not_contamination(export, tmp_path):
    template = "Read the passage with care and then answer the question below in at most three words: {}"
    export.save([ask(export, task, template.format(f"what is {task}")) for task in range(20)], tmp_path / "held.jsonl")
    rollouts = [ask(export, task, template.format(f"what is {task}")) for task in range(15, 25)]
    given = {"decontaminate": [str(tmp_path / "held.jsonl")], "metadata": True}
    # Tasks 15 to 19 are the same tasks; the others share only what all of them have in common.
    assert keys(export(rollouts, **given)) == [(task, 0) for task in range(20, 25)]
    with pytest.raises(ConfigError, match="10 by “decontaminate="):
        export(rollouts, **given, decontaminate_common=20)


def test_held_out_files_without_questions_are_refused(export, tmp_path):
    export.save([{"question": "Why?"}, {"id": 7}], tmp_path / "held_out.jsonl")
    with pytest.raises(ConfigError, match=r"held_out.jsonl:2: has no question"):
        export([export.make()], decontaminate=str(tmp_path / "held_out.jsonl"))
    with pytest.raises(ConfigError, match="no such file") as raised:
        export([export.make()], decontaminate="nowhere.jsonl")
    assert "+decontaminate=" in (raised.value.hint or "")
    assert not (tmp_path / "rows.jsonl").exists()


def test_more_shards_than_a_process_may_open(export, tmp_path):
    resource = pytest.importorskip("resource", reason="limits of POSIX")
    for task in range(200):
        export.save([export.make(task, n, n % 2) for n in range(2)], tmp_path / f"shard{task}.jsonl")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(
        int(file.name) for file in Path("/dev/fd").iterdir()
    )  # what other tests of this process have open counts too
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 64, limits[1]))
    try:
        report = export_rollouts(Recipe(input=f"{tmp_path}/shard*.jsonl", output=f"{tmp_path}/rl.jsonl", format="rl"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert report.rows.total() == 400


def test_drawing_depends_on_the_seed_and_not_on_the_order_of_the_file(export, rollouts):
    first = keys(export(rollouts, min_reward="all", max_per_task=1, metadata=True))
    assert sorted(keys(export(rollouts[::-1], min_reward="all", max_per_task=1, metadata=True))) == first
    assert len({task for task, _ in first}) == 4
    others = [
        keys(export(rollouts, min_reward="all", max_per_task=1, metadata=True, seed=seed)) for seed in range(1, 5)
    ]
    assert any(other != first for other in others)


def test_values_of_a_field_are_balanced(export):
    rollouts = [export.make(n, metadata={"kind": "easy" if n else "hard"}) for n in range(9)]
    rows = export(rollouts, balance_by="metadata.kind", max_per_value=3, metadata=True)
    assert len(rows) == 4
    assert (0, 0) in keys(rows)
    first_come = export(rollouts, preset="nemo", success=None, balance_by="metadata.kind", max_per_value=2)
    assert len(first_come) == 3
    with pytest.raises(ConfigError, match=r"no rollout has a field metadata\.knid"):
        export(rollouts, balance_by="metadata.knid")


def test_a_task_is_on_one_side_of_the_split_whatever_its_number(export, tmp_path):
    rollouts = [export.make(task, n) for task in range(40) for n in range(3)]
    renumbered = [export.make(task) | {"_ng_task_index": task + 100} for task in range(40)]
    train = export([*rollouts, *renumbered], validation=0.25)
    held_out = export.rows(tmp_path / "rows_validation.jsonl")
    prompts = [{row["messages"][1]["content"] for row in rows} for rows in (train, held_out)]
    assert not prompts[0] & prompts[1]
    assert len(prompts[0] | prompts[1]) == 40
    assert 4 <= len(prompts[1]) <= 16
    assert len(train) + len(held_out) == 160


def test_tasks_of_other_runs_with_the_same_number_are_other_tasks(export, tmp_path):
    other = export.make(0, 0, 0.0)
    other["responses_create_params"]["input"] = "something else"
    export.save([other], tmp_path / "second.jsonl")
    export.save([export.make(0, 0, 1.0)], tmp_path / "first.jsonl")
    recipe = Recipe(input=f"{tmp_path}/*.jsonl", output=str(tmp_path / "o" / "pairs.jsonl"), format="dpo")
    with pytest.raises(ConfigError, match="2 by “in no pair”"):
        export_rollouts(recipe)
    assert not (tmp_path / "o" / "pairs.jsonl").exists()


def test_rollouts_of_several_models_are_refused_with_their_counts(export, tmp_path):
    rollouts = [export.make(0), export.make(1), export.make(2, response={"model": "large"})]
    with pytest.raises(ConfigError, match=r"2 models: tiny \(2\), large \(1\)") as raised:
        export(rollouts)
    assert "+model=<name>" in (raised.value.hint or "")
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts.jsonl"]
    assert len(export(rollouts, model="tiny")) == 2
    assert len(export(rollouts, mixed_models=True)) == 3


def test_a_pattern_does_not_mean_the_other_files_of_a_run(export, tmp_path):
    for name in ("a.jsonl", "a_failures.jsonl", "a_materialized_inputs.jsonl"):
        export.save([export.make()], tmp_path / name)
    out = tmp_path / "out" / "rows.jsonl"
    report = export_rollouts(Recipe(input=str(tmp_path / "*.jsonl"), output=str(out), format="sft"))
    assert (report.files, report.lines) == (1, 1)
    assert Path(out).exists()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("The answer is 4.", "the  answer is: 4", True),
        ("“Yes” — of course…", "yes of course", True),
        ("Straße ΣΑΣ", "STRASSE σας", True),
        ("1.5", "15", False),
        ("naïve", "naive", False),
    ],
)
def test_texts_are_the_same_if_their_words_are(export, one, other, same):
    rows = export([export.make(0, 0, text=one), export.make(0, 1, text=other)], unique=True)
    assert len(rows) == (1 if same else 2)


def test_answers_that_differ_in_a_call_or_its_result_are_not_duplicates(export):
    first, second, third = (export.make(0, n, text="Done.") for n in range(3))
    second["response"]["output"][1]["arguments"] = '{"a": 2}'
    third["response"]["output"][2]["output"] = "4"
    assert len(export([first, second, third], unique=True)) == 3


def test_log_probabilities_that_are_not_numbers_are_none(export):
    broken = export.make(0, 1)
    broken["response"]["output"][1]["generation_log_probs"] = ["a", "b"]
    assert len(export([export.make(), broken], format="rl")) == 1
    assert export.dropped() == {"log-probabilities": 1}


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl.gz", "rows.parqet"])
def test_an_unknown_ending_is_not_taken_for_a_folder_of_tables(name):
    with pytest.raises(ValueError, match=f"the ending {Path(name).suffix} is unknown"):
        Recipe(input="a.jsonl", output=name, format="sft")
    assert Recipe(input="a.jsonl", output=name, format="sft", container="jsonl").stored_as == "jsonl"
    assert Recipe(input="a.jsonl", output="data/rows", format="sft").stored_as == "hf"
