import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from nemo_gym.config.directives import expand, expand_short_forms
from nemo_gym.config.locate import Locator
from nemo_gym.errors import ConfigError, DeleteKeyNotFoundError, InheritPathNotFoundError

Write = Callable[[str, Any], Path]
Parse = Callable[..., DictConfig]
Failure = Callable[..., ConfigError]


def expanded(data: dict[str, Any]) -> dict[str, Any]:
    return expand(expand_short_forms(data), locator=Locator()).data


def test_inheriting_moves_the_block_and_puts_own_keys_on_top() -> None:
    data = {"base": {"x": 1, "deep": {"y": 2, "z": 3}}, "new": {"_inherit_from": "base", "deep": {"z": 4}, "w": 5}}
    assert expanded(data) == {"new": {"x": 1, "deep": {"y": 2, "z": 4}, "w": 5}}


def test_copying_keeps_the_source() -> None:
    assert expanded({"base": {"x": [1]}, "new": {"_copy": "base"}}) == {"base": {"x": [1]}, "new": {"x": [1]}}


@pytest.mark.parametrize(
    "data", [{"base": {"x": 1}, "new": "${inherit_from:base}"}, {"new": "${ inherit_from: base }", "base": {"x": 1}}]
)
def test_short_form_moves(data: dict[str, Any]) -> None:
    assert expanded(data) == {"new": {"x": 1}}


def test_short_form_copies_plain_values_too() -> None:
    assert expanded({"a": {"b": 7}, "new": {"c": "${copy:a.b}"}}) == {"a": {"b": 7}, "new": {"c": 7}}


def test_several_blocks_may_inherit_the_same_one() -> None:
    data = {"base": {"x": 1}, "one": {"_inherit_from": "base"}, "two": {"_inherit_from": "base", "x": 2}}
    assert expanded(data) == {"one": {"x": 1}, "two": {"x": 2}}


def test_a_nested_source_is_removed_from_its_place() -> None:
    assert expanded({"a": {"b": {"x": 1}, "c": 2}, "new": "${inherit_from:a.b}"}) == {"a": {"c": 2}, "new": {"x": 1}}


def test_chains_work_in_any_order() -> None:
    data = {"c": {"_inherit_from": "b", "z": 3}, "b": {"_inherit_from": "a", "y": 2}, "a": {"x": 1}}
    assert expanded(data) == {"c": {"x": 1, "y": 2, "z": 3}}
    assert expanded(dict(reversed(data.items()))) == {"c": {"x": 1, "y": 2, "z": 3}}


def test_a_path_may_lead_through_an_inherited_block() -> None:
    data = {"a": {"in": {"x": 1, "y": 2}}, "b": {"_copy": "a", "in": {"y": 3}}, "c": {"_copy": "b.in"}}
    assert expanded(data)["c"] == {"x": 1, "y": 3}


def test_directives_work_inside_lists_and_blocks() -> None:
    assert expanded({"a": {"x": 1}, "list": [{"_copy": "a", "y": 2}]})["list"] == [{"x": 1, "y": 2}]


def test_a_nested_directive_lies_on_top_of_what_is_inherited() -> None:
    data = {"a": {"in": {"x": 1, "y": 1}}, "b": {"y": 2, "z": 2}, "c": {"_copy": "a", "in": {"_copy": "b", "z": 3}}}
    assert expanded(data)["c"] == {"in": {"x": 1, "y": 2, "z": 3}}


def test_lists_are_replaced() -> None:
    assert expanded({"a": {"x": [1, 2]}, "b": {"_inherit_from": "a", "x": [3]}}) == {"b": {"x": [3]}}


def test_the_top_level_may_inherit_too() -> None:
    assert expanded({"_inherit_from": "b", "a": 1, "b": {"x": 2}}) == {"x": 2, "a": 1}


def test_deleting_removes_own_and_inherited_keys() -> None:
    data = {"a": {"x": 1, "y": 2, "z": 3}, "b": {"_inherit_from": "a", "y": 5, "w": 6, "_delete_key": "x, y, w"}}
    assert expanded(data) == {"b": {"z": 3}}


def test_deleting_reaches_into_inherited_blocks() -> None:
    data = {"a": {"in": {"x": 1, "y": 2}}, "b": {"_inherit_from": "a", "in": {"_delete_key": "x"}}}
    assert expanded(data) == {"b": {"in": {"y": 2}}}


def test_deleting_takes_a_list_and_works_at_the_top_level() -> None:
    assert expanded({"a": 1, "b": 2, "c": 3, "_delete_key": ["a", "b"]}) == {"c": 3}


def test_a_required_source_stays_required() -> None:
    assert expanded({"a": "???", "b": {"_copy": "a", "x": 1}, "c": "${copy:a}"})["b"] == "???"


def test_an_own_required_value_keeps_the_inherited_one() -> None:
    assert expanded({"a": {"x": 1}, "b": {"_inherit_from": "a", "x": "???"}}) == {"b": {"x": 1}}


def test_interpolations_are_carried_along_unresolved() -> None:
    assert expanded({"a": {"x": "${y}"}, "b": {"_inherit_from": "a"}}) == {"b": {"x": "${y}"}}


def test_a_later_file_puts_keys_on_top_of_a_short_form(write: Write, parse: Parse) -> None:
    write("a.yaml", "base: {x: 1, y: 2}\nnew: ${inherit_from:base}\n")
    write("b.yaml", "new: {y: 3}\n")
    config = parse("+config_paths=[a.yaml,b.yaml]", "++new.z=4")
    assert config.new == {"x": 1, "y": 3, "z": 4}
    assert "base" not in config


def test_the_path_of_a_source_may_be_interpolated(write: Write, parse: Parse) -> None:
    write("a.yaml", "one: {x: 1}\ntwo: {x: 2}\nnew: {_copy: '${which}'}\nshort: '${copy:${which}.x}'\n")
    config = parse("+config_paths=[a.yaml]", "+which=two")
    assert config.new == {"x": 2}
    assert config.short == 2


def test_delete_key_works_from_the_command_line(write: Write, parse: Parse) -> None:
    write("a.yaml", "a: {b: {x: 1, y: 2}}\n")
    assert parse("+config_paths=[a.yaml]", "++a.b._delete_key=x").a.b == {"y": 2}


def test_an_unknown_source_is_named_with_its_place_and_the_nearest_key(write: Write, failure: Failure) -> None:
    write("a.yaml", "base:\n  inner: {x: 1}\nnew:\n  _inherit_from: base.iner\n")
    error = failure("+config_paths=[a.yaml]")
    assert isinstance(error, InheritPathNotFoundError)
    assert isinstance(error, ValueError)
    assert str(error) == (
        "a.yaml:4: 'new._inherit_from' names 'base.iner', but there is no 'base.iner' in the configuration. "
        "Did you mean: 'base.inner'?"
    )
    assert "config_paths" in str(error.hint)


def test_an_unknown_key_to_delete_is_named(write: Write, failure: Failure) -> None:
    write("a.yaml", "a:\n  first: 1\n  _delete_key: frist\n")
    error = failure("+config_paths=[a.yaml]")
    assert isinstance(error, DeleteKeyNotFoundError)
    assert isinstance(error, KeyError)
    assert str(error).startswith(
        "a.yaml:3: 'a._delete_key' names 'frist', which is neither defined here nor inherited."
    )
    assert "Did you mean: 'first'?" in str(error)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": {"_inherit_from": "b"}, "b": {"_inherit_from": "a"}}, "inherits from itself: b -> a -> b"),
        ({"a": {"b": {"_copy": "a"}}}, "inherits from itself: a -> a"),
        ({"a": {"_copy": "a.b", "b": {}}}, "inherits from itself: a.b -> a.b"),
        ({"a": {"_copy": "b", "_inherit_from": "b"}, "b": {}}, "'a' has both"),
        ({"a": {"_copy": 3}}, "'a._copy' must be the dotted path of another key"),
        ({"a": {"_copy": "b", "x": 1}, "b": 5}, "'a' inherits a plain value"),
        ({"a": "x ${copy:b}", "b": 5}, "'a' mixes ${inherit_from:...} or ${copy:...} with other text"),
        ({"_copy": "b", "b": 5}, "'(top level)' inherits a plain value"),
    ],
)
def test_mistakes_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expanded(data)
    assert message in str(caught.value)
    assert caught.value.hint


names = st.sampled_from(["a", "b", "c", "d"])
trees = st.recursive(st.integers(0, 9), lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=12)
mappings = st.dictionaries(names, trees, max_size=4)


@settings(max_examples=50, deadline=None)
@given(mappings)
def test_a_configuration_without_directives_is_unchanged(data: dict[str, Any]) -> None:
    assert expanded(data) == data


@settings(max_examples=50, deadline=None)
@given(mappings, mappings)
def test_expanding_never_changes_its_input(base: dict[str, Any], own: dict[str, Any]) -> None:
    data = {"base": base, "new": {**own, "_copy": "base"}, "other": {"_inherit_from": "base"}}
    before = copy.deepcopy(data)
    expanded(data)
    assert data == before


@settings(max_examples=50, deadline=None)
@given(mappings, mappings)
def test_copy_and_inherit_differ_only_in_the_source(base: dict[str, Any], own: dict[str, Any]) -> None:
    moved = expanded({"base": base, "new": {**own, "_inherit_from": "base"}})
    copied = expanded({"base": base, "new": {**own, "_copy": "base"}})
    assert copied == {"base": base, **moved}


@settings(max_examples=50, deadline=None)
@given(mappings, mappings)
def test_own_keys_always_win(base: dict[str, Any], own: dict[str, Any]) -> None:
    new = expanded({"base": base, "new": {**own, "_inherit_from": "base"}})["new"]
    assert set(new) == set(base) | set(own)
    for key, value in own.items():
        if not isinstance(value, dict):
            assert new[key] == value
    for key in set(base) - set(own):
        assert new[key] == base[key]
