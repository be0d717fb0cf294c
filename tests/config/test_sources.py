import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from nemo_gym import PARENT_DIR
from nemo_gym.config.locate import ConfigSource, find_readable, server_directory
from nemo_gym.config.sources import merge_sources
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, MalformedConfigPathsError

Write = Callable[[str, Any], Path]
Parse = Callable[..., DictConfig]
Failure = Callable[..., ConfigError]


def test_later_files_win_and_mappings_are_united(write: Write, parse: Parse) -> None:
    write("a.yaml", {"x": {"one": 1, "two": 2}, "list": [1, 2, 3]})
    write("b.yaml", {"x": {"two": 22, "three": 3}, "list": [4]})
    config = parse("+config_paths=[a.yaml,b.yaml]")
    assert config.x == {"one": 1, "two": 22, "three": 3}
    assert config.list == [4]


def test_a_file_overrides_the_files_that_it_includes_at_any_depth(
    write: Write, parse: Parse, caplog: pytest.LogCaptureFixture
) -> None:
    write("a.yaml", {"config_paths": ["c.yaml"], "x": "a", "y": "a"})
    write("b.yaml", {"y": "b"})
    write("c.yaml", {"config_paths": ["d.yaml"], "x": "c", "y": "c", "z": {"one": "c"}})
    write("d.yaml", {"x": "d", "z": {"one": "d", "two": "d"}})
    with caplog.at_level(logging.INFO):
        config = parse("+config_paths=[a.yaml,b.yaml]")
    assert (config.x, config.y, config.z) == ("a", "b", {"one": "c", "two": "d"})
    assert config.config_paths == ["d.yaml", "c.yaml", "a.yaml", "b.yaml"]
    assert "c.yaml sets x, z.one of d.yaml; a.yaml sets x, y of c.yaml" in caplog.text


def test_a_file_is_loaded_once_and_the_repetition_is_reported(
    write: Write, parse: Parse, caplog: pytest.LogCaptureFixture
) -> None:
    write("a.yaml", {"config_paths": ["b.yaml", "a.yaml"], "x": "a"})
    write("b.yaml", {"config_paths": ["./a.yaml"], "x": "b"})
    with caplog.at_level(logging.WARNING):
        config = parse("+config_paths=[a.yaml,b.yaml]")
    assert config.config_paths == ["b.yaml", "a.yaml"]
    assert config.x == "a"
    assert "more than once" in caplog.text
    assert "./a.yaml" in caplog.text


def test_priority_of_all_sources(write: Write, parse: Parse) -> None:
    write("a.yaml", dict.fromkeys(["file", "env", "caller", "command"], "file"))
    write("env.yaml", dict.fromkeys(["env", "caller", "command"], "env"))
    config = parse("+config_paths=[a.yaml]", "+command=command", initial=dict.fromkeys(["caller", "command"], "caller"))
    assert {key: config[key] for key in ("file", "env", "caller", "command")} == {
        "file": "file",
        "env": "env",
        "caller": "caller",
        "command": "command",
    }


def test_env_file_may_name_config_files_and_the_command_line_replaces_them(write: Write, parse: Parse) -> None:
    write("a.yaml", {"a": 1})
    write("b.yaml", {"b": 1})
    write("env.yaml", {"config_paths": ["a.yaml"]})
    assert "a" in parse()
    assert "a" not in parse("+config_paths=[b.yaml]")


def test_config_paths_may_be_an_interpolation(write: Write, parse: Parse) -> None:
    write("a.yaml", {"a": 1})
    write("env.yaml", {"my_paths": ["a.yaml"]})
    assert parse("+config_paths=${my_paths}").a == 1


def test_nested_config_paths_may_refer_to_the_command_line(write: Write, parse: Parse) -> None:
    write("a.yaml", "config_paths: ['${folder}/b.yaml']\nfolder: elsewhere\n")
    write("here/b.yaml", {"b": 1})
    assert parse("+config_paths=[a.yaml]", "+folder=here").b == 1


def test_a_caller_may_pass_an_omegaconf_dict_and_keeps_it_unchanged(parse: Parse) -> None:
    initial = OmegaConf.create({"a": "${b}", "b": 1})
    OmegaConf.set_readonly(initial, True)
    config = parse("++b=2", initial=initial)
    assert config.a == 2
    assert initial.b == 1
    config.b = 3


def test_a_list_over_a_mapping_names_both_places(write: Write, failure: Failure) -> None:
    write("a.yaml", "x:\n  y: [1]\n")
    write("b.yaml", "\n\nx:\n  y: {z: 1}\n")
    error = failure("+config_paths=[a.yaml,b.yaml]")
    assert str(error) == "'x.y' is a list in one place and a mapping in another: a.yaml:2 and b.yaml:4"
    assert error.hint


def test_missing_file_lists_where_it_was_looked_for(write: Write, failure: Failure, work_dir: Path) -> None:
    write("configs/my_server.yaml", {})
    error = failure("+config_paths=[configs/my_servr.yaml]")
    assert isinstance(error, ConfigPathNotFoundError)
    assert isinstance(error, FileNotFoundError)
    assert str(error).startswith("command line: config file 'configs/my_servr.yaml' does not exist.")
    assert str(work_dir / "configs/my_servr.yaml") in str(error)
    assert str(PARENT_DIR / "configs/my_servr.yaml") in str(error)
    assert error.hint == "did you mean configs/my_server.yaml?"


def test_missing_included_file_names_the_line_that_includes_it(write: Write, failure: Failure) -> None:
    write("a.yaml", "x: 1\nconfig_paths:\n- nowhere.yaml\n")
    assert str(failure("+config_paths=[a.yaml]")).startswith("a.yaml:2: config file 'nowhere.yaml' does not exist")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("a.yaml", "is not a list but text"),
        ("{a: 1}", "is not a list but a mapping"),
        ("[a.yaml,{b: 1}]", "entry 2"),
        ("[1]", "entry 1"),
        ("3", "type int"),
    ],
)
def test_config_paths_must_be_a_list_of_paths(write: Write, failure: Failure, value: str, problem: str) -> None:
    write("a.yaml", {})
    error = failure(f"+config_paths={value}")
    assert isinstance(error, MalformedConfigPathsError)
    assert isinstance(error, ValueError)
    assert str(error).startswith("command line: 'config_paths' ")
    assert problem in str(error)
    assert '"+config_paths=[first.yaml,second.yaml]"' in str(error.hint)


def test_config_paths_that_point_nowhere_name_the_key_that_is_not_set(failure: Failure) -> None:
    error = failure("+config_paths=${my_paths}")
    assert str(error) == "command line: 'config_paths' needs ${my_paths}, which is not set"
    assert error.hint == "add 'my_paths: <value>' to env.yaml or pass '+my_paths=<value>'"


def test_relative_paths_are_looked_for_here_and_then_in_the_installation(write: Write, work_dir: Path) -> None:
    assert find_readable("nemo_gym/errors.py") == PARENT_DIR / "nemo_gym/errors.py"
    write("nemo_gym/errors.py", "")
    assert find_readable("nemo_gym/errors.py") == work_dir / "nemo_gym/errors.py"
    assert find_readable(PARENT_DIR / "nemo_gym/errors.py") == PARENT_DIR / "nemo_gym/errors.py"
    assert find_readable("no/such/file") is None


def test_a_server_folder_here_counts_only_if_it_can_be_installed(write: Write, work_dir: Path) -> None:
    installed = PARENT_DIR / "nemo_gym/config"
    write("nemo_gym/config/data/rows.jsonl", "")
    assert server_directory("nemo_gym", "config") == installed
    write("nemo_gym/config/requirements.txt", "")
    assert server_directory("nemo_gym", "config") == work_dir / "nemo_gym/config"


def test_a_server_folder_that_is_only_here_is_used(write: Write, work_dir: Path) -> None:
    write("resources_servers/mine/app.py", "")
    assert server_directory("resources_servers", "mine") == work_dir / "resources_servers/mine"
    assert server_directory("resources_servers", "none") == PARENT_DIR / "resources_servers/none"


keys = st.sampled_from(["a", "b", "c"])
# the name says whether a value may be a list, because a list and a mapping under one key can't be merged
values = st.recursive(st.integers(0, 9), lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=8)
lists = st.fixed_dictionaries({}, optional={"list": st.lists(st.integers(0, 9), max_size=2)})
contents = st.tuples(st.dictionaries(keys, values, max_size=3), lists).map(lambda pair: pair[0] | pair[1])
sources = st.lists(contents, min_size=1, max_size=4)


def united(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: united(below.get(key), value) for key, value in above.items()}


@settings(max_examples=50, deadline=None)
@given(sources)
def test_merging_unites_mappings_and_replaces_everything_else(contents: list[dict[str, Any]]) -> None:
    expected: Any = {}
    for content in contents:
        expected = united(expected, content)
    merged = merge_sources([ConfigSource(str(index), content) for index, content in enumerate(contents)])
    assert OmegaConf.to_container(merged) == expected
