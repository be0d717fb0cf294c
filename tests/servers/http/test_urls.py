"""Addresses: which endpoints can be asked at all, and what of an address may be shown."""

import pytest
from yarl import URL

from nemo_gym.errors import ConfigError
from nemo_gym.servers.http.urls import check_endpoint, proxy_for, shown


@pytest.mark.parametrize(
    "base_url",
    ["http://127.0.0.1:8000/v1", "https://api.example.com", "http://[::1]:80/v1", "http://me:secret@host/v1"],
)
def test_an_endpoint_with_a_complete_address_is_accepted(base_url: str) -> None:
    check_endpoint(base_url, setting="base_url", has_key=False)


@pytest.mark.parametrize(
    "base_url",
    ["localhost:8000/v1", "127.0.0.1:8000", "api.example.com", "/v1", "", "ftp://host", "http://", "http://a\nb/"],
)
def test_an_address_that_nothing_can_be_sent_to_is_a_configuration_error(base_url: str) -> None:
    with pytest.raises(ConfigError, match=r"base_url of policy: .* is not a complete address") as error:
        check_endpoint(base_url, setting="base_url of policy", has_key=True)
    assert error.value.hint is not None
    assert "http://" in error.value.hint


@pytest.mark.parametrize("base_url", ["http://me:secret@host/v1", "https://secret@host/v1"])
def test_a_login_beside_a_key_is_a_configuration_error_that_shows_neither(base_url: str) -> None:
    with pytest.raises(ConfigError, match="contains a login, but an API key is set as well") as error:
        check_endpoint(base_url, setting="base_url", has_key=True)
    assert "secret" not in str(error.value)


def test_the_login_of_a_broken_address_is_not_shown_either() -> None:
    with pytest.raises(ConfigError) as error:
        check_endpoint("me:secret@host:99999999/v1", setting="base_url", has_key=False)
    assert "secret" not in str(error.value)


def test_what_is_shown_has_no_login_no_query_and_no_fragment() -> None:
    assert shown("http://me:secret@host:81/path?key=secret#secret") == "http://host:81/path"
    assert shown("http://[") == "(unreadable address)"


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://elsewhere.invalid/", "http://a"),
        ("https://elsewhere.invalid/", "http://b"),
        ("ws://elsewhere.invalid/", "http://c"),
        ("http://localhost/", None),
        ("http://127.0.0.2:80/", None),
        ("http://[::1]/", None),
        ("http://near.invalid/", None),
    ],
)
def test_proxies_are_chosen_by_scheme_and_never_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None
) -> None:
    monkeypatch.setenv("no_proxy", "near.invalid")
    assert proxy_for(URL(url), {"http": "http://a", "https": "http://b", "all": "http://c"}) == proxy
