"""Addresses of requests: whether they are valid, how to show them, and which proxy or redirect applies.

An address may contain a login, and its query often contains a key. Only the result of :func:`shown` belongs in
messages.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final
from urllib.request import proxy_bypass

from yarl import URL

from nemo_gym.errors import ConfigError

CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
SCHEMES: Final = ("http", "https")


def shown(url: str | URL) -> str:
    """The address without login, query and fragment, which may hold secrets."""
    try:
        return str(URL(url).with_user(None).with_query(None).with_fragment(None))
    except ValueError:
        return "(unreadable address)"


def has_control_characters(url: str | URL) -> bool:
    """Whether an address contains control characters. Parsers silently drop line breaks instead of refusing them."""
    return isinstance(url, str) and CONTROL.search(url) is not None


@lru_cache(maxsize=256)
def checked(url: str | URL) -> URL:
    """The address, parsed; a ValueError if it is not one. Remembered, because a run asks few addresses very often."""
    if has_control_characters(url):
        raise ValueError("control characters")
    return URL(url)


def check_endpoint(base_url: str, *, setting: str, has_key: bool) -> None:
    """Raise a ConfigError that names the setting if requests can't be sent to this base URL."""
    url = _parsed(base_url)
    if url is None:
        raise ConfigError(
            f"{setting}: {base_url.rpartition('@')[2]!r} is not a complete address",
            hint="write the address with its scheme, for example http://127.0.0.1:8000/v1",
        )
    if has_key and (url.user or url.password):
        raise ConfigError(
            f"{setting}: {shown(url)} contains a login, but an API key is set as well; only one can be sent",
            hint="remove user:password@ from the address, or leave the key empty",
        )


def _parsed(address: str) -> URL | None:
    try:
        url = URL(address)
    except ValueError:
        return None
    return url if url.scheme in SCHEMES and url.host and not has_control_characters(address) else None


def proxy_for(url: URL, proxies: Mapping[str, str]) -> str | None:
    """The proxy that the environment sets for this address; this machine is always reached directly."""
    host = url.host or ""
    if host == "localhost" or host.startswith("127.") or host == "::1" or proxy_bypass(host):
        return None
    return proxies.get(url.scheme) or proxies.get("all")


def redirect_target(url: URL, headers: Mapping[str, str]) -> URL | None:
    """Where a redirect leads, or None if it does not say. Raises a ValueError if that is not an address."""
    location = headers.get("Location")
    return url.join(URL(location)) if location else None
