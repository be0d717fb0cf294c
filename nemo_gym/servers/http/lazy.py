"""Modules that are not imported before they are first used.

Importing aiohttp takes longer than all our own modules of a collection together, and many commands never send a
request. Write ``from nemo_gym.servers.http.lazy import aiohttp`` and use it as usual inside functions.
``except aiohttp.ClientError`` works too, because Python looks the class up only when something was raised. Annotations
must be quoted. ``request_errors`` is our own module of exceptions, which are subclasses of aiohttp's.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["aiohttp", "request_errors"]

if TYPE_CHECKING:
    import aiohttp

    from nemo_gym.servers.http import request_errors
else:

    class _LazyModule:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            found = getattr(import_module(self._name), attribute)
            # Stored, so that the next access is an ordinary attribute look-up.
            setattr(self, attribute, found)
            return found

    aiohttp = _LazyModule("aiohttp")
    request_errors = _LazyModule("nemo_gym.servers.http.request_errors")
