from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.config.secrets import mask_secrets, masked_yaml


@pytest.mark.parametrize("key", ["policy_api_key", "hf_token", "key", "OPENAI_API_KEY", "password", "client_secret"])
@pytest.mark.parametrize("value", ["hunter2", 42, None, True])
def test_any_scalar_under_a_suspect_key_is_masked(key: str, value: Any) -> None:
    assert mask_secrets({key: value}) == {key: "****"}


def test_lists_are_masked_item_by_item_and_mappings_by_their_own_keys() -> None:
    data = {"api_keys": ["a", "b"], "key_settings": {"url": "http://x", "token": "t"}, "list": [{"token": "t", "n": 1}]}
    assert mask_secrets(data) == {
        "api_keys": ["****", "****"],
        "key_settings": {"url": "http://x", "token": "****"},
        "list": [{"token": "****", "n": 1}],
    }


def test_a_credential_is_masked_wherever_it_was_interpolated() -> None:
    config = OmegaConf.create(
        {"policy_api_key": "sk-hunter22", "headers": {"auth": "Bearer ${policy_api_key}"}, "copy": "${policy_api_key}"}
    )
    text = masked_yaml(config)
    assert "hunter22" not in text
    assert "auth: Bearer ****" in text


def test_ordinary_words_under_a_suspect_key_do_not_mask_others() -> None:
    data = mask_secrets({"subset_key": "category", "description": "one category", "api_key": "no", "answer": "no"})
    assert data == {"subset_key": "****", "description": "one category", "api_key": "****", "answer": "no"}


def test_passwords_in_addresses_are_masked() -> None:
    assert mask_secrets({"url": "https://user:hunter2@host/x"}) == {"url": "https://user:****@host/x"}


def test_a_dump_resolves_what_it_can() -> None:
    config = OmegaConf.create({"a": "${b}", "b": 1, "c": {"d": "${nowhere}", "e": "${b}"}, "f": ["${b}", "${nowhere}"]})
    text = masked_yaml(config)
    assert text == "a: 1\nb: 1\nc:\n  d: ${nowhere}\n  e: 1\nf:\n- 1\n- ${nowhere}\n"


words = st.sampled_from(["a", "my_key", "token", "url", "x"])
trees = st.recursive(
    st.text("xyz", max_size=3), lambda t: st.lists(t, max_size=2) | st.dictionaries(words, t, max_size=3)
)


def leaves(data: Any, key: str = "") -> list[tuple[str, Any]]:
    if isinstance(data, dict):
        return [leaf for name, value in data.items() for leaf in leaves(value, name)]
    if isinstance(data, list):
        return [leaf for value in data for leaf in leaves(value, key)]
    return [(key, data)]


@settings(max_examples=50, deadline=None)
@given(trees)
def test_masking_keeps_the_shape_and_every_other_value(data: Any) -> None:
    masked = [(key, "****" if "key" in key or "token" in key else value) for key, value in leaves(data)]
    assert leaves(mask_secrets(data)) == masked
