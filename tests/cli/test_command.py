"""Flags and the pairs they stand for; short names of configurations."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nemo_gym.cli.command import Arguments, read_arguments, with_files
from nemo_gym.cli.commands import by_name
from nemo_gym.config.short_names import find_configuration, find_environment
from nemo_gym.errors import UsageError

COLLECT = by_name()["collect_rollouts"].flags


def pairs(*words: str) -> dict[str, Any]:
    return dict(read_arguments(words, COLLECT).pairs)


def test_overrides_pass_unchanged():
    overrides = ("+limit=5", "++a.b.c=[1,2]", "+head_server={host: h, port: 1}", "~key")
    assert read_arguments(overrides, COLLECT) == Arguments({}, overrides, overrides)


def test_flags_become_pairs():
    assert pairs("-a", "my_agent", "--input", "in.jsonl", "--limit=5", "--temperature", "0.7", "--resume") == {
        "agent_name": "my_agent",
        "input_jsonl_fpath": "in.jsonl",
        "limit": 5,
        "responses_create_params.temperature": 0.7,
        "resume_from_cache": True,
    }


@pytest.mark.parametrize(
    ("typed", "value"), [("5", 5), ("-1", -1), ("1e-3", 0.001), ("null", None), ("auto", "auto"), ("many", "many")]
)
def test_a_number_is_a_number_and_anything_else_is_left_to_validation(typed, value):
    found = pairs(f"--concurrency={typed}")["num_samples_in_parallel"]
    assert (found, type(found)) == (value, type(value))


def test_configuration_files_are_one_list():
    assert pairs("--config", "a.yaml", "--config=b c.yaml") == {"config_paths": ["a.yaml", "b c.yaml"]}


def test_a_later_flag_wins():
    assert pairs("--limit", "1", "--limit", "2") == {"limit": 2}


def test_selectors_stand_for_configuration_files(workspace):
    config = Path("resources_servers/mine/configs/mine.yaml")
    config.parent.mkdir(parents=True)
    config.touch()
    assert pairs("--resources-server", "mine") == {"config_paths": [str(config)]}


@given(st.text(min_size=1))
@example("123")
@example("null")
@example("a, b")
@example("{a: 1}")
@example('say "hi" \\')
@example("two\nlines")
@example("Grüße, 世界")
def test_text_stays_as_it_was_typed(text):
    assert pairs("--model", text) == {"policy_model_name": text}
    assert pairs(f"--model={text}") == {"policy_model_name": text}


def test_bare_files_join_those_of_a_flag(workspace):
    typed = read_arguments(["-i", "a.jsonl", "b.jsonl", "+tui=true"], by_name()["viewer"].flags)
    assert with_files(typed, "jsonl_fpath", as_list=True) == Arguments(
        {"jsonl_fpath": ["a.jsonl", "b.jsonl"]}, ("+tui=true",), typed.typed
    )
    assert with_files(typed, "jsonl_fpath", as_list=False).pairs == {"jsonl_fpath": "a.jsonl,b.jsonl"}


def test_files_in_brackets_and_bare_ones_are_not_mixed(workspace):
    typed = Arguments(overrides=("+jsonl_fpath=[a.jsonl]", "b.jsonl"))
    with pytest.raises(UsageError, match="files are given in two ways"):
        with_files(typed, "jsonl_fpath", as_list=True)


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        (["--agnet", "x"], "unknown flag --agnet", "Did you mean: '--agent'?"),
        (["--zzzzz"], "unknown flag --zzzzz", "Flags: '--agent'"),
        (
            ["--num-samples-in-parallel", "4"],
            "unknown flag --num-samples-in-parallel",
            "--concurrency sets num_",
        ),
        (["--drain-timeout-s", "4"], "unknown flag --drain-timeout-s", "is written +drain_timeout_s=<value>"),
        (["--limit"], "--limit needs a value", "write --limit <value>; it sets +limit"),
        (["--resume=yes"], "--resume takes no value", ""),
        (["--config", "a.yaml", "+config_paths=[b.yaml]"], "both by flags and by +config_paths", "in one way"),
    ],
)
def test_a_mistake_in_a_flag_is_explained(typed, message, hint):
    with pytest.raises(UsageError) as caught:
        read_arguments(typed, COLLECT)
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")


def touch(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).touch()


def test_a_name_means_the_file_of_the_same_name(workspace):
    touch("resources_servers/maths/configs/maths.yaml")
    touch("resources_servers/maths/configs/hard.yaml")
    assert find_configuration("resources_servers", "maths") == "resources_servers/maths/configs/maths.yaml"


def test_a_flavor_picks_another_file(workspace):
    touch("responses_api_models/server/configs/server.yaml")
    touch("responses_api_models/server/configs/training.yaml")
    assert (
        find_configuration("responses_api_models", "server/training")
        == "responses_api_models/server/configs/training.yaml"
    )


def test_the_only_file_needs_no_flavor(workspace):
    touch("resources_servers/maths/configs/other.yaml")
    assert find_configuration("resources_servers", "maths") == "resources_servers/maths/configs/other.yaml"


def test_benchmarks_and_environments_have_a_config_yaml(workspace):
    touch("benchmarks/aime/config.yaml")
    touch("environments/cards/config.yaml")
    assert find_configuration("benchmarks", "aime") == "benchmarks/aime/config.yaml"
    assert find_configuration("environments", "cards") == "environments/cards/config.yaml"


def test_search_directories_come_first(workspace):
    touch("benchmarks/aime/config.yaml")
    touch("elsewhere/benchmarks/aime/config.yaml")
    assert find_configuration("benchmarks", "aime", ["elsewhere"]) == "elsewhere/benchmarks/aime/config.yaml"


def test_an_unknown_name_suggests_a_near_one(workspace):
    touch("benchmarks/zodiac/config.yaml")
    with pytest.raises(UsageError, match="no benchmarks/zodiak with a configuration file") as caught:
        find_configuration("benchmarks", "zodiak")
    assert caught.value.hint == "Did you mean: 'zodiac'?"


def test_several_files_and_no_flavor_is_ambiguous(workspace):
    touch("resources_servers/maths/configs/easy.yaml")
    touch("resources_servers/maths/configs/hard.yaml")
    with pytest.raises(UsageError, match="resources_servers/maths has several configurations") as caught:
        find_configuration("resources_servers", "maths")
    assert caught.value.hint == "choose one: maths/easy, maths/hard"


def test_an_unknown_flavor_lists_the_known_ones(workspace):
    touch("resources_servers/maths/configs/maths.yaml")
    with pytest.raises(UsageError, match="has no configuration 'hard'"):
        find_configuration("resources_servers", "maths/hard")


def test_a_bare_name_is_an_environment_or_a_benchmark(workspace):
    touch("resources_servers/maths/configs/maths.yaml")
    touch("benchmarks/aime/config.yaml")
    assert find_environment("maths") == "resources_servers/maths/configs/maths.yaml"
    assert find_environment("aime") == "benchmarks/aime/config.yaml"
    with pytest.raises(UsageError, match="no environment or benchmark is called zodiac"):
        find_environment("zodiac")
