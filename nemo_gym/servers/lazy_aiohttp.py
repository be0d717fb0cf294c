"""``aiohttp``, imported when it is first used and not before.

Importing it takes longer than all other modules of a collection together, and requests to plain ``http://`` addresses
never need it. Write ``from nemo_gym.servers.lazy_aiohttp import aiohttp`` and use it as ever in the body of a function,
also in ``except`` clauses, which are read only when something was raised. Annotations have to be in quotes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["aiohttp"]

if TYPE_CHECKING:
    import aiohttp
else:

    class _Aiohttp:
        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("aiohttp"), name)

    aiohttp = _Aiohttp()
