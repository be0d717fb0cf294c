from pathlib import Path

import pytest

from nemo_gym.cli.short_names import find_configuration, find_environment
from nemo_gym.errors import UsageError


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
