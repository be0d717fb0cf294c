"""A worker on another machine: a whole Gym that connects to the collector and runs what it is sent.

If the connection breaks, the worker tries to reconnect for a while. The Gym stays, but running rollouts are abandoned,
because the collector has leased them to another worker by then. The worker ends when the collector does not come back,
or dismisses it.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_gym import __version__
from nemo_gym.errors import ConfigError
from nemo_gym.executors.frames import Connection, Frame, next_frame
from nemo_gym.executors.handshake import (
    UNAUTHENTICATED_LIMIT,
    Invitation,
    RefusedError,
    introduce,
    keep_alive,
    worker_tls,
)
from nemo_gym.executors.placement import StartFailure
from nemo_gym.executors.worker import (
    DISMISSED,
    READY,
    configuration,
    serve_collector,
    serve_while_it_runs,
    with_own_ports,
)
from nemo_gym.io.process import settle_heap
from nemo_gym.rollouts.attempt import AgentAttempt, recorded
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.supervision import ServerCrashedError

logger = logging.getLogger(__name__)

RECONNECT_S: Final = 30.0
PAUSE_S: Final = 0.5
BEAT_S: Final = 5.0


async def work_for(invitation: Invitation, about: Mapping[str, Any]) -> StartFailure | None:
    """Connect to the collector, host the Gym that it describes, and run what it sends until dismissed."""
    hosted: _HostedGym | None = None
    async with AsyncExitStack() as stack:
        while True:
            frames: asyncio.Queue[Frame] = asyncio.Queue()
            connection = await join(invitation, frames, {**about, "number": invitation.number, "version": __version__})
            opening = await next_frame(frames, connection)
            if opening is None or DISMISSED in opening.head:
                connection.close()
                if opening is not None:
                    return None
                continue
            beating = asyncio.create_task(_beat(connection))
            try:
                # Hosted once: after a broken connection the Gym is still there, and only rollouts have been lost.
                hosted = hosted or await _open_gym(stack, opening, about)
                connection.send(Frame(READY).encode())
                if await serve_while_it_runs(hosted.gym, serve_collector(frames, connection, hosted.attempt)):
                    return None
            except ServerCrashedError as crash:
                return StartFailure(str(crash))
            except CannotStartError as error:
                return StartFailure(str(error), error.hint)
            finally:
                beating.cancel()
                connection.close()


class CannotStartError(ConfigError):
    """The Gym can't start on this node."""


class _HostedGym(NamedTuple):
    gym: Gym
    attempt: Attempt


async def _open_gym(stack: AsyncExitStack, opening: Frame, about: Mapping[str, Any]) -> _HostedGym:
    prepare_process(opening.head)
    try:
        gym = await stack.enter_async_context(host_gym(with_own_ports(for_node(opening, about))))
    except ConfigError as error:
        raise CannotStartError(str(error), hint=error.hint) from error
    except (ServerCrashedError, ImportError, OSError) as error:
        raise CannotStartError(f"{type(error).__name__}: {error}") from error
    attempt: Attempt = AgentAttempt(gym.client, timeout_s=opening.head["timeout_s"])
    if opening.head.get("steps"):
        attempt = recorded(attempt, trace_run=opening.head.get("trace_run", ""))
    settle_heap()
    return _HostedGym(gym, attempt)


async def join(invitation: Invitation, frames: "asyncio.Queue[Frame]", about: dict[str, Any]) -> Connection:
    """Connect and authenticate, retrying for ``RECONNECT_S``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RECONNECT_S
    tls = worker_tls(invitation.certificate) if invitation.certificate else None
    while True:
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(frames.put_nowait, limit=UNAUTHENTICATED_LIMIT),
                invitation.host,
                invitation.port,
                ssl=tls,
                server_hostname="" if tls else None,
            )
            keep_alive(connection)
            await introduce(connection, frames, invitation.secret, about)
        except (OSError, RefusedError) as error:
            if loop.time() > deadline:
                address = f"{invitation.host}:{invitation.port}"
                raise RefusedError(
                    f"the collector at {address} could not be reached for {RECONNECT_S:g} s: {error}"
                ) from None
            await asyncio.sleep(PAUSE_S)
        else:
            return connection


async def _beat(connection: Connection) -> None:
    """Show regularly that this event loop is still running."""
    while True:
        await asyncio.sleep(BEAT_S)
        connection.send(Frame({"beat": True}).encode())


def prepare_process(head: Mapping[str, Any]) -> None:
    """Set up this process like the collector's: environment variables, and the working folder if it exists here."""
    for name, value in head.get("environment", {}).items():
        os.environ.setdefault(name, value)  # what the node sets itself is more likely to be right there
    folder = head.get("folder")
    if folder and Path(folder).is_dir():
        os.chdir(folder)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def for_node(opening: Frame, about: Mapping[str, Any]) -> DictConfig:
    """The configuration of a Gym on this node, with ``{node_ip}`` and ``{node_id}`` filled in in the overrides."""
    overrides = _filled(opening.head.get("overrides") or {}, about)
    config = OmegaConf.merge(configuration(opening), overrides)
    assert isinstance(config, DictConfig)
    return config


def _filled(value: Any, about: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, about) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, about) for each in value]
    if isinstance(value, str):
        for name in ("node_ip", "node_id"):
            value = value.replace(f"{{{name}}}", str(about.get(name, "")))
    return value
