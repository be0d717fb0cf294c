"""The usual overrides, read without Hydra: as Hydra reads them, or not at all."""

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.config.plain_overrides import plain_override

HYDRA = OverridesParser.create()

TOKENS = r"""
    a _x1 e5 ü true False NULL nan Inf -inf 0 -0 12 -7 007 1_000 1.5 -0.25 1. .5 1e3 +3 / // . .. - -- : b.yaml
    results/one.jsonl http://127.0.0.1:80/v1 [ ] [] , ,, [a,b] [1,[2]] = $ ${a} 'a' " \ ( ) {a:1} @ ~ +
"""
WORDS = st.sampled_from([*TOKENS.split(), " "])
TEXTS = st.lists(WORDS, max_size=5).map("".join)
LISTS = st.lists(WORDS, max_size=4).map(lambda words: f"[{','.join(words)}]")
KEYS = st.sampled_from(
    ["", "a", "a.b", "_a.b1", "a-b", "a.0", "a/b", "a@b", ".", "a..b", "hydra.run.dir", "true", "$a"]
)
SIGNS = st.sampled_from(["", "+", "++", "~", "+++"])


def seen(override: Any) -> tuple[Any, ...]:
    kind = override.is_add(), override.is_force_add(), override.is_delete(), override.is_sweep_override()
    return override.key_or_group, override.package, kind, repr(override.value())


@given(SIGNS, KEYS, st.sampled_from(["=", "=", "=", "", "= "]), TEXTS | LISTS)
@settings(max_examples=1000)
def test_what_is_read_is_what_hydra_reads(sign: str, key: str, equals: str, value: str) -> None:
    argument = f"{sign}{key}{equals}{value}"
    override = plain_override(argument)
    if override is not None:
        assert seen(override) == seen(HYDRA.parse_override(argument))


@pytest.mark.parametrize(
    "argument",
    [
        "+limit=5",
        "++a.b=-1.5",
        "a=true",
        "+name=some_agent-2",
        "+output_jsonl_fpath=results/one.jsonl",
        "+config_paths=[one/configs/a.yaml,/two/configs/b.yaml]",
        "+policy_base_url=http://127.0.0.1:8000/v1",
        "+empty=[]",
    ],
)
def test_the_usual_ones_are_read(argument: str) -> None:
    override = plain_override(argument)
    assert override is not None
    assert seen(override) == seen(HYDRA.parse_override(argument))


@pytest.mark.parametrize(
    "argument", ["+a", "+a=", "+a=b,c", "+a={b: 1}", "+a=${b}", "+a='b'", "~a", "+a/b=c", "+a=b c"]
)
def test_all_others_are_left_to_hydra(argument: str) -> None:
    assert plain_override(argument) is None
