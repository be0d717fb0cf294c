"""A request as bytes for a plain ``http://`` connection, or the finding that it needs more than that.

``plain_request`` answers None for whatever the plain client does not do (see there): such a request is aiohttp's.
What is sent equals what aiohttp sends, header by header. Nothing from a caller can end a line: addresses with control
characters and headers with line breaks are refused.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from yarl import URL

from nemo_gym import __version__
from nemo_gym.servers.http_errors import BadAddressError
from nemo_gym.servers.http_timeout import Limits

# HEAD is missing: its answers have the headers of a body and no body, which the parser can't be told.
METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
BODILESS: Final = frozenset({"GET", "OPTIONS"})
OPTIONS: Final = frozenset({"headers", "proxy", "timeout"})
# Headers that change how a message is framed, sent or packed.
FRAMING: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
USER_AGENT: Final = f"rollout-gym/{__version__}"
DEFAULT_TYPE: Final = b"Content-Type: application/octet-stream\r\n"
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
LINE_BREAK: Final = re.compile(r"[\r\n\0]")


class Address(NamedTuple):
    """Where connections lead to."""

    host: str
    port: int


class Template(NamedTuple):
    """What requests have in common that differ only in their bodies."""

    address: Address
    head: bytes
    method: str
    url: str | URL
    headers: tuple[tuple[str, str], ...]
    has_type: bool


def plain_request(method: str, url: str | URL, body: Any, options: Mapping[str, Any]) -> Template | None:
    """The request, unless it needs TLS, a proxy, a login, a streamed body or an option that only aiohttp knows."""
    if not (OPTIONS.issuperset(options) and (body is None or type(body) is bytes)) or options.get("proxy"):
        return None
    timeout: Limits = options["timeout"]
    if timeout.connect is not None or timeout.sock_read is not None:
        return None
    headers = options.get("headers") or {}
    if type(headers) is not dict and not isinstance(headers, Mapping):
        return None
    return prepare(method, url, tuple(headers.items()))


def end_of_head(request: Template, body: bytes | None) -> bytes:
    """What the body adds to the head, and the empty line."""
    if body is None and request.method in BODILESS:
        return b"\r\n"
    end = b"Content-Length: %d\r\n\r\n" % len(body or b"")
    return end if request.has_type or (body is None and request.method == "DELETE") else DEFAULT_TYPE + end


# Requests to an endpoint differ in little but their bodies.
@lru_cache(maxsize=1024)
def prepare(method: str, url: str | URL, headers: tuple[tuple[str, str], ...]) -> Template | None:
    """All that does not depend on the body; None if it takes aiohttp to send it."""
    refuse_control_characters(url)
    try:
        target = URL(url)
    except ValueError:
        return None
    host, port, names = target.raw_host, target.port, {name.lower() for name, _ in headers}
    if method not in METHODS or target.scheme != "http" or not host or "%" in host or not port:
        return None
    if target.raw_user is not None or target.raw_password is not None or not FRAMING.isdisjoint(names):
        return None
    lines = [f"{method} {target.raw_path_qs} HTTP/1.1", f"Host: {host_and_port(host, port)}"]
    lines += [header_line(name, value) for name, value in headers]
    if "accept" not in names:
        lines.append("Accept: */*")
    if "user-agent" not in names:
        lines.append(f"User-Agent: {USER_AGENT}")
    head = "".join(f"{line}\r\n" for line in lines).encode()
    return Template(Address(host, port), head, method, url, headers, has_type="content-type" in names)


def refuse_control_characters(url: str | URL) -> None:
    """Raise for an address that could end a line: parsers of addresses drop line breaks instead of refusing them."""
    if isinstance(url, str) and CONTROL.search(url):
        raise BadAddressError(url, "control characters")


def host_and_port(host: str, port: int) -> str:
    """The host as servers want to be called."""
    name = f"[{host}]" if ":" in host else host.rstrip(".")
    return name if port == 80 else f"{name}:{port}"


def header_line(name: str, value: str) -> str:
    """A header as it is sent; refused if it could be read as more than one."""
    if not isinstance(value, str):
        raise TypeError(f"header {name} must be text, not {type(value).__name__}")
    line = f"{name}: {value}"
    if LINE_BREAK.search(line):
        raise ValueError("a header must not contain a line break or a null byte")
    return line
