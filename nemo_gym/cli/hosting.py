"""``ng_run``: hosts a Gym until Ctrl-C.

Everything is checked before the first server starts. A server process that ends unasked ends the whole run, with its
last lines and exit code 1; Ctrl-C is the normal end and has exit code 0.
"""

import asyncio
import contextlib
from collections.abc import Sequence

from omegaconf import DictConfig

from nemo_gym.cli import console
from nemo_gym.cli.gyms import crashes_explained
from nemo_gym.cli.loop import cancelled_by_signals, run_async
from nemo_gym.cli.outcome import Exit
from nemo_gym.cli.parameters import RunConfig
from nemo_gym.cli.settings import read_configuration
from nemo_gym.servers.gym import Gym, host_gym


def run(overrides: Sequence[str]) -> int:
    """Start all servers, say where they are, and keep them running."""
    config = read_configuration(RunConfig, overrides)
    with crashes_explained("correct the cause and start again"):
        run_async(_host_until_interrupted(config))
    console.note("NeMo Gym finished!")
    return Exit.OK


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
    # A server process of its own takes the key for "do not serve"; here it has to answer once before all is stopped.
    config["dry_run"] = False
    async with host_gym(config, head=True) as gym:
        console.emit(announcement(gym))
        if not dry_run:
            await gym.watch()


def announcement(gym: Gym) -> str:
    """What is printed once all servers answer: how many there are, and where."""
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
        ]
    )
