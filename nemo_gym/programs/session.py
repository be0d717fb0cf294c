"""What a function gets that works as an agent: clients for the model, the tools of the environment, its workspace.

    async def solve(task, session):
        client = session.openai()
        reply = await client.chat.completions.create(model=session.model, messages=[…])
        return reply.choices[0].message.content

Frameworks take ``session.base_url`` and ``session.api_key``. Every call of the model is captured on its way, whichever
client makes it. ``await session.tools.spell(word="…")`` runs a tool; ``session.tools.definitions`` lists them.
"""

import importlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError

CallTool = Callable[[str, Mapping[str, Any]], Awaitable[str]]


class SessionTools:
    """The tools of the environment."""

    def __init__(self, call: CallTool, definitions: list[dict[str, Any]]) -> None:
        self._call = call
        self.definitions = definitions

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> str:
        """Run a tool; arguments may be JSON, as a model writes them."""
        return await self._call(name, json.loads(arguments) if isinstance(arguments, str) else arguments)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[str]]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def run(**arguments: Any) -> str:
            return await self._call(name, arguments)

        return run


@dataclass(frozen=True)
class AttemptSession:
    """One attempt, as its function sees it."""

    base_url: str  # ends in /v1, as OpenAI's clients want it
    root_url: str  # the same without /v1, as Anthropic's clients want it
    api_key: str = field(repr=False)
    model: str
    tools: SessionTools
    workspace: Path
    deadline: float | None = None  # seconds since 1970
    mcp_url: str | None = None  # the tools once more, for frameworks with a client of their own
    _clients: list[Any] = field(default_factory=list, repr=False)

    def openai(self, **options: Any) -> Any:
        """An ``openai.AsyncOpenAI`` for this attempt."""
        client = _imported("openai").AsyncOpenAI
        return self._own(client(base_url=self.base_url, api_key=self.api_key, **{"max_retries": 0, **options}))

    def anthropic(self, **options: Any) -> Any:
        """An ``anthropic.AsyncAnthropic`` for this attempt."""
        client = _imported("anthropic").AsyncAnthropic
        return self._own(client(base_url=self.root_url, api_key=self.api_key, **{"max_retries": 0, **options}))

    def _own(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """Close the clients that were asked for."""
        for client in self._clients:
            await client.close()


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ConfigError(f"session.{package}() needs the package {package}", hint=f"pip install {package}") from None
