"""Looking names up: once for all who ask at the same time, and not for ever."""

import asyncio
import socket
from typing import Any

import pytest

from nemo_gym.servers import http_connect
from nemo_gym.servers.http_connect import Resolver
from nemo_gym.servers.http_errors import ClientClosedError
from nemo_gym.servers.http_request import Address

NAME = Address("somewhere.invalid", 80)
FOUND = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))


class Names:
    """A name server that answers when it is told to, or fails."""

    def __init__(self) -> None:
        self.asked = 0
        self.known = True
        self.may_answer = asyncio.Event()

    async def __call__(self, host: str, port: int, **options: Any) -> list[Any]:
        self.asked += 1
        await self.may_answer.wait()
        if not self.known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [FOUND]


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", names)
    return names


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_an_address_need_not_be_looked_up(names: Names, host: str) -> None:
    (found,) = await Resolver(asyncio.get_running_loop()).resolve(Address(host, 80))
    assert found[4] == (host, 80)
    assert names.asked == 0


async def test_all_who_ask_at_once_share_a_lookup_and_those_who_come_soon_after(names: Names) -> None:
    resolver = Resolver(asyncio.get_running_loop())
    asking = [asyncio.create_task(resolver.resolve(NAME)) for _ in range(50)]
    await asyncio.sleep(0)
    asking[0].cancel()  # whoever started it may leave
    names.may_answer.set()
    assert await asyncio.gather(*asking[1:]) == [[FOUND]] * 49
    assert await resolver.resolve(NAME) == [FOUND]
    assert names.asked == 1


async def test_a_name_is_looked_up_again_after_a_while(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connect, "NAMES_KNOWN_S", -1.0)
    resolver = Resolver(asyncio.get_running_loop())
    names.may_answer.set()
    for _ in range(2):
        await resolver.resolve(NAME)
    assert names.asked == 2


async def test_that_a_name_is_unknown_is_not_remembered(names: Names) -> None:
    resolver = Resolver(asyncio.get_running_loop())
    names.may_answer.set()
    names.known = False
    with pytest.raises(socket.gaierror):
        await resolver.resolve(NAME)
    names.known = True
    assert await resolver.resolve(NAME) == [FOUND]


async def test_closing_is_not_a_cancellation_of_those_who_ask(names: Names) -> None:
    resolver = Resolver(asyncio.get_running_loop())
    asking = asyncio.create_task(resolver.resolve(NAME))
    await asyncio.sleep(0)
    resolver.close()
    with pytest.raises(ClientClosedError):
        await asking
