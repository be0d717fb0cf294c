from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.config.overrides import parse_overrides
from nemo_gym.config.parse import parse_config
from nemo_gym.errors import ConfigError, MalformedConfigPathsError, UsageError


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("+limit=5", {"limit": 5}),
        ("+a.b.c=value", {"a": {"b": {"c": "value"}}}),
        ("++a=1.5", {"a": 1.5}),
        ("+a=true", {"a": True}),
        ("+a=null", {"a": None}),
        ("+a=", {"a": ""}),
        ('+a="1"', {"a": "1"}),
        ("+a='x, y'", {"a": "x, y"}),
        ("+k=[a,b,{x: 3}]", {"k": ["a", "b", {"x": 3}]}),
        ("+k={a: 1, b: null}", {"k": {"a": 1, "b": None}}),
        ("+url=http://127.0.0.1:8000/v1", {"url": "http://127.0.0.1:8000/v1"}),
        ("+paths=${my_paths}", {"paths": "${my_paths}"}),
        ("+home=${oc.env:HOME}", {"home": "${oc.env:HOME}"}),
        ("+mixed=[${a},x-${b.c}]", {"mixed": ["${a}", "x-${b.c}"]}),
        ("+required=???", {"required": "???"}),
    ],
)
def test_reads_every_form_of_value(argument: str, expected: dict[str, Any]) -> None:
    assert parse_overrides([argument]) == expected


def test_no_arguments_give_an_empty_configuration() -> None:
    assert parse_overrides([]) == {}


def test_nested_keys_of_several_arguments_are_united() -> None:
    assert parse_overrides(["+a.b=1", "+a.c=2", "+a={d: 3}"]) == {"a": {"b": 1, "c": 2, "d": 3}}


def test_double_plus_replaces_an_earlier_value() -> None:
    assert parse_overrides(["+a=1", "++a=2", "++b=3"]) == {"a": 2, "b": 3}


def test_double_plus_replaces_a_list_as_a_whole() -> None:
    assert parse_overrides(["+a=[1,2]", "++a=[3]"]) == {"a": [3]}


def test_double_plus_makes_a_plain_value_a_mapping() -> None:
    assert parse_overrides(["+a=1", "++a.b=2"]) == {"a": {"b": 2}}


def test_bare_key_overrides_what_the_same_command_line_added() -> None:
    assert parse_overrides(["+a.b=1", "a.b=2"]) == {"a": {"b": 2}}


def test_hydras_own_settings_are_ignored() -> None:
    assert parse_overrides(["hydra.run.dir=.", "hydra/job_logging=none", "+a=1"]) == {"a": 1}


def error_of(*arguments: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_overrides(arguments)
    return caught.value


def test_bare_key_with_nothing_to_override_recommends_a_plus() -> None:
    error = error_of("limit=5")
    assert str(error) == "command line: 'limit=<value>' has nothing to override"
    assert error.hint == "to set it, use '+limit=<value>'"


@pytest.mark.parametrize(
    "arguments", [("+a=1", "+a=2"), ("+a=[1]", "+a=[2]"), ("+a=1", "+a.b=2"), ("+a={b: 1}", "+a=2")]
)
def test_adding_a_key_twice_recommends_two_pluses(arguments: tuple[str, str]) -> None:
    error = error_of(*arguments)
    assert "is given more than once" in str(error)
    assert error.hint is not None
    assert "use '++a" in error.hint


@pytest.mark.parametrize(
    ("argument", "recommended"),
    [
        ("~a.b.c", "'++a.b._delete_key=c'"),
        ("~policy_model", "'++_delete_key=policy_model'"),
        ("~a.b=1", "'++a._delete_key=b'"),
    ],
)
def test_deleting_explains_the_delete_directive(argument: str, recommended: str) -> None:
    error = error_of(argument)
    assert "can't remove a key" in str(error)
    assert recommended in str(error.hint)


def test_several_values_without_brackets_are_refused() -> None:
    error = error_of("+names=a,b")
    assert str(error) == "command line: '+names=...' gives 'names' several values"
    assert "'+names=[a,b]'" in str(error.hint)


def test_config_paths_without_brackets_is_a_malformed_list() -> None:
    with pytest.raises(MalformedConfigPathsError, match="several values"):
        parse_overrides(["+config_paths=a.yaml,b.yaml"])


def test_an_argument_torn_by_the_shell_recommends_quotes() -> None:
    error = error_of("+config_paths=[a.yaml,", "b.yaml]")
    assert "can't read '+config_paths=...'" in str(error)
    assert "quote the whole argument" in str(error.hint)


def test_an_argument_without_equals_sign_explains_the_grammar() -> None:
    error = error_of("limit")
    assert "can't read 'limit'" in str(error)
    assert "'+key=value'" in str(error.hint)


def test_special_characters_recommend_a_quoted_value() -> None:
    error = error_of("+url=http://host/?a=b")
    assert error.hint == "quote a value with special characters: '+url=\"<value>\"'"


@pytest.mark.parametrize("argument", ["db@package=1", "+group/option=1", "+=1"])
def test_config_groups_are_no_keys(argument: str) -> None:
    assert "does not set a dotted key" in str(error_of(argument))


@pytest.mark.parametrize(
    "arguments",
    [
        ('+policy_api_key=sk-"hunter2',),
        ("+policy_api_key=sk", "hunter2]"),
        ("+policy_api_key=[sk", "hunter2]"),
        ("policy_api_key=hunter2",),
        ("+policy_api_key=hunter2", "+policy_api_key=hunter2"),
        ("+policy_api_key=hunter2,hunter2",),
        ("~policy_api_key=hunter2",),
    ],
)
def test_secrets_never_appear_in_an_error(arguments: tuple[str, ...]) -> None:
    error = error_of(*arguments)
    assert "hunter2" not in f"{error} {error.hint}"


def test_parsing_leaves_no_files_behind(work_dir: Path, parse: Callable[..., Any]) -> None:
    parse("+a=1", "++b.c=[1,2]")
    assert list(work_dir.iterdir()) == []


VALUES = [
    "say \"hi\" to 'them' \\",
    "a, b",
    "{a: 1}",
    "[x",
    "two\nlines\ttab",
    "Grüße, 世界 🎉",
    "null",
    "007",
    "1e5",
    "",
    "-x",
    "=",
    7,
    0.7,
    True,
    None,
    ["a,b", {"c": "}"}],
    {"k": "v, w"},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_pair_keeps_its_value(value: Any, parse: Callable[..., Any]) -> None:
    given = parse_config(pairs={"a.b": value}).config
    assert OmegaConf.to_container(given)["a"] == {"b": value}


def test_pairs_name_files_and_nest_by_dots(write: Callable[..., Path]) -> None:
    write("x, [y].yaml", "free: 1\nother: 2\n")
    config = parse_config(
        pairs={"config_paths": ["x, [y].yaml"], "free": "5", "params.temperature": 0.7, "params.seed": 1}
    ).config
    assert (config.free, config.other, config.params) == ("5", 2, {"temperature": 0.7, "seed": 1})


def test_overrides_add_to_pairs_and_replace_them_with_two_pluses() -> None:
    pairs = {"a": {"b": 1}, "limit": 3}
    assert parse_overrides(["+a.c=2", "++limit=4"], pairs) == {"a": {"b": 1, "c": 2}, "limit": 4}
    assert pairs == {"a": {"b": 1}, "limit": 3}
    with pytest.raises(ConfigError, match="'limit' is given more than once"):
        parse_overrides(["+limit=4"], pairs)


def test_a_pair_may_refer_to_another_key() -> None:
    assert parse_config(pairs={"a": "${b}/v1", "b": "http://x"}).config.a == "http://x/v1"


@pytest.mark.parametrize(
    ("value", "message"), [("${b", "malformed ${...} expression"), (object(), "is not text, a number, a list")]
)
def test_a_value_that_no_configuration_can_hold_is_refused_with_its_key(value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(pairs={"a.b": value})
    assert str(caught.value).startswith("command line: the value of 'a.b'")
    assert message in str(caught.value)


words = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(
    lambda word: word not in {"null", "true", "false", "nan", "inf"}
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), words)


def spelled(value: Any) -> str:
    return (
        {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
    )


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(words, scalars, min_size=1, max_size=5))
def test_flat_values_survive_the_command_line(values: dict[str, Any]) -> None:
    assert parse_overrides([f"+{key}={spelled(value)}" for key, value in values.items()]) == values


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(words, scalars), min_size=1, max_size=6))
def test_the_last_double_plus_wins(pairs: list[tuple[str, Any]]) -> None:
    assert parse_overrides([f"++{key}={spelled(value)}" for key, value in pairs]) == dict(pairs)


@pytest.mark.parametrize("value", ["7" * 5000, "[" * 5000 + "]" * 5000, "{a:" * 3000 + "1" + "}" * 3000])
def test_a_value_that_no_parser_takes_is_a_mistake_and_not_a_crash(value: str) -> None:
    with pytest.raises(UsageError, match="nested too deeply or too long a number"):
        parse_overrides([f"+x={value}"])
