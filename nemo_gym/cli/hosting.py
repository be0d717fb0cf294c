"""Commands that host servers or show how they would be configured: ``ng_run`` and ``ng_dump_config``.

``ng_run`` hosts a Gym until Ctrl-C. Everything is checked before the first server starts. A server process that can't
be started (again) ends it with exit code 1 and shows its last lines; Ctrl-C is the normal end, with exit code 0.

``RunHelper`` hosts a Gym alongside the other work of a program, such as a trainer. The Gym runs on an event loop in a
separate thread. Its errors are raised in the caller's thread: by :meth:`~RunHelper.start` before the servers are ready,
by :meth:`~RunHelper.poll` afterwards.
"""

import asyncio
import contextlib
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait

from omegaconf import DictConfig

from nemo_gym.api.gyms import crashes_explained
from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments
from nemo_gym.cli.named_environments import named_environments
from nemo_gym.cli.parameters import RunConfig, read_configuration
from nemo_gym.cli.signals import cancelled_by_signals, run_async
from nemo_gym.config.instances import require_instances
from nemo_gym.config.keys import SERVE_TOKEN
from nemo_gym.config.secrets import masked_yaml
from nemo_gym.errors import ExitCode
from nemo_gym.global_config import GlobalConfigDictParserConfig, get_global_config_dict
from nemo_gym.servers.callers import asks_for_token
from nemo_gym.servers.event_loop import new_event_loop
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.server_client import token_path
from nemo_gym.telemetry.served_requests import counting_requests


def run(arguments: Arguments) -> int:
    """Start all servers, print their addresses, and keep them running."""
    config = read_configuration(RunConfig, named_environments(arguments).arguments)
    require_instances(config)
    with crashes_explained("correct the cause and start again"):
        run_async(_host_until_interrupted(config))
    console.note("NeMo Gym finished!")
    return ExitCode.OK


async def _host_until_interrupted(config: DictConfig) -> None:
    hosting = asyncio.ensure_future(_host(config))
    with (
        cancelled_by_signals(hosting, announcement="Sending interrupt signals to servers..."),
        contextlib.suppress(asyncio.CancelledError),
    ):
        await hosting


async def _host(config: DictConfig) -> None:
    console.note("Waiting for servers to spin up")
    dry_run = bool(config.get("dry_run"))
    # A separate server process would read this key as "do not serve", but here every server must reply once first.
    config["dry_run"] = False
    async with host_gym(config, head=True, metrics=counting_requests) as gym:
        console.emit(announcement(gym))
        if not dry_run:
            await gym.watch()


def announcement(gym: Gym) -> str:
    """The list of servers and addresses that is printed once all of them reply."""
    servers = gym.describe()
    rows = [
        (
            f"[{number}]",
            str(server.process_name),
            f"{server.server_type}/{server.name}",
            str(server.url),
            str(server.pid),
        )
        for number, server in enumerate(servers, start=1)
    ]
    head = gym.client.head_server_config
    return "\n".join(
        [
            f"All {len(servers)} / {len(servers)} servers ready!",
            "",
            "Server Instances",
            console.table(("", "name", "implementation", "address", "process"), rows),
            "",
            f"Head server: http://{head.host}:{head.port}. Ctrl-C stops everything.",
            f"Everybody who reaches these ports may call them ({SERVE_TOKEN}: off)."
            if not asks_for_token(gym.config)
            else f"Your own programs may call them; others need the token in {token_path(head.port)}.",
        ]
    )


def dump_config(arguments: Arguments) -> int:
    """Print the configuration as the servers would see it. It may contain keys of any command."""
    config = read_configuration(None, named_environments(arguments).arguments)
    console.emit(masked_yaml(config).rstrip("\n"))
    return ExitCode.OK


class RunHelper:
    """Starts, watches and stops the servers of one configuration. Each object can be used only once."""

    def __init__(self) -> None:
        self._loop = new_event_loop()
        # A daemon, so that a program that forgets ``shutdown`` can still end.
        self._thread = threading.Thread(target=self._loop.run_forever, name="nemo-gym", daemon=True)
        self._stop = asyncio.Event()
        self._ready: Future[None] = Future()
        self._hosting: Future[None] = Future()

    def start(self, global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None) -> None:
        """Start all servers and return once they reply."""
        config = get_global_config_dict(global_config_dict_parser_config)
        self._thread.start()
        self._hosting = asyncio.run_coroutine_threadsafe(self._host(config), self._loop)
        # If hosting fails, nothing ever becomes ready.
        wait([self._ready, self._hosting], return_when=FIRST_COMPLETED)
        if self._hosting.done():
            self.shutdown()
            self._hosting.result()

    def poll(self) -> None:
        """Raise an error if a server can't be kept running."""
        if self._hosting.done():
            self._hosting.result()

    def run_forever(self) -> None:
        """Wait until Ctrl-C, or until a server can't be kept running, which is an error. Then stop all servers."""
        try:
            self._hosting.result()
        except KeyboardInterrupt:
            pass
        finally:
            self.shutdown()

    def shutdown(self) -> None:
        """Stop all servers. Does nothing if they have already stopped or were never started."""
        if self._thread.is_alive():
            # The servers are stopped inside their loop, which may only end after that.
            self._loop.call_soon_threadsafe(self._stop.set)
            wait([self._hosting])
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    async def _host(self, config: DictConfig) -> None:
        async with host_gym(config, head=True, metrics=counting_requests) as gym:
            self._ready.set_result(None)
            crash, stop = asyncio.ensure_future(gym.watch()), asyncio.ensure_future(self._stop.wait())
            try:
                await asyncio.wait([crash, stop], return_when=asyncio.FIRST_COMPLETED)
                if crash.done():
                    crash.result()
            finally:
                crash.cancel()
                stop.cancel()
