"""``RunHelper``: hosts a Gym beside other work of a program, such as a trainer.

The Gym lives on an event loop in a thread of its own. What goes wrong there is raised in the caller's thread: by
:meth:`~RunHelper.start` before the servers are ready, by :meth:`~RunHelper.poll` afterwards.
"""

import asyncio
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait

from omegaconf import DictConfig

from nemo_gym.cli.loop import new_loop
from nemo_gym.global_config import GlobalConfigDictParserConfig, get_global_config_dict
from nemo_gym.servers.gym import host_gym


class RunHelper:
    """Starts, watches and stops the servers of one configuration, once."""

    def __init__(self) -> None:
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nemo-gym", daemon=True)
        self._stop = asyncio.Event()
        self._ready: Future[None] = Future()
        self._hosting: Future[None] = Future()

    def start(self, global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None) -> None:
        """Start all servers and return when they answer."""
        config = get_global_config_dict(global_config_dict_parser_config)
        self._thread.start()
        self._hosting = asyncio.run_coroutine_threadsafe(self._host(config), self._loop)
        wait([self._ready, self._hosting], return_when=FIRST_COMPLETED)
        if self._hosting.done():
            self.shutdown()
            self._hosting.result()

    def poll(self) -> None:
        """Raise if a server ended unasked."""
        if self._hosting.done():
            self._hosting.result()

    def run_forever(self) -> None:
        """Wait until a server ends unasked, which is raised, or until Ctrl-C; stop all servers in either case."""
        try:
            self._hosting.result()
        except KeyboardInterrupt:
            pass
        finally:
            self.shutdown()

    def shutdown(self) -> None:
        """Stop all servers; harmless if they are stopped already or never were started."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            wait([self._hosting])
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    async def _host(self, config: DictConfig) -> None:
        async with host_gym(config, head=True) as gym:
            self._ready.set_result(None)
            crash, stop = asyncio.ensure_future(gym.watch()), asyncio.ensure_future(self._stop.wait())
            try:
                await asyncio.wait([crash, stop], return_when=asyncio.FIRST_COMPLETED)
                if crash.done():
                    crash.result()
            finally:
                crash.cancel()
                stop.cancel()
