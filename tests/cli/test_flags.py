from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.cli.commands import by_name
from nemo_gym.cli.flags import quote, to_overrides
from nemo_gym.errors import UsageError

COLLECT = by_name()["collect_rollouts"].flags


def test_overrides_pass_unchanged():
    given_overrides = ["+limit=5", "++a.b.c=[1,2]", "+head_server={host: h, port: 1}", "~key"]
    assert to_overrides(given_overrides, COLLECT) == given_overrides


def test_flags_become_overrides():
    typed = ["-a", "my_agent", "--input", "in.jsonl", "--limit=5", "--temperature", "0.7", "--resume"]
    assert to_overrides(typed, COLLECT) == [
        "+agent_name=my_agent",
        "+input_jsonl_fpath=in.jsonl",
        "+limit=5",
        "+responses_create_params.temperature=0.7",
        "+resume_from_cache=true",
    ]


def test_configuration_files_collapse_into_one_list():
    assert to_overrides(["--config", "a.yaml", "--config=b c.yaml"], COLLECT) == ['+config_paths=[a.yaml,"b c.yaml"]']


def test_a_later_flag_wins():
    assert to_overrides(["--limit", "1", "--limit", "2"], COLLECT) == ["+limit=2"]


def test_text_that_looks_like_a_number_stays_text():
    assert to_overrides(["--model", "123"], COLLECT) == ['+policy_model_name="123"']


def test_selectors_stand_for_configuration_files(workspace):
    config = Path("resources_servers/mine/configs/mine.yaml")
    config.parent.mkdir(parents=True)
    config.touch()
    assert to_overrides(["--resources-server", "mine"], COLLECT) == [f"+config_paths=[{config}]"]


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1))
def test_the_override_grammar_reads_quoted_text_back(text):
    parsed = OverridesParser.create().parse_override(f"+key={quote(text)}").value()
    assert (parsed, type(parsed)) == (text, str)


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        (["--agnet", "x"], "unknown flag --agnet", "Did you mean: '--agent'?"),
        (["--zzzzz"], "unknown flag --zzzzz", "Flags: '--agent'"),
        (["--limit"], "--limit needs a value", "for example: --limit <limit>"),
        (["--resume=yes"], "--resume takes no value", ""),
        (["--config", "a.yaml", "+config_paths=[b.yaml]"], "both by flags and by +config_paths", "in one way"),
    ],
)
def test_a_mistake_in_a_flag_is_explained(typed, message, hint):
    with pytest.raises(UsageError) as caught:
        to_overrides(typed, COLLECT)
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")
