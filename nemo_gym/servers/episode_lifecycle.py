"""The life of an episode in an environment server: a free slot, a time limit, and a clean-up that always runs.

An episode ends with a result or with a failure, never with an error reply: what went wrong is part of the reply, so
that the collector can tell which failures are worth another attempt. The clean-up runs whatever happened, in reverse
order of what was opened, also if the caller has gone away.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from nemo_gym.schemas.episodes import REASON_CHARS, EpisodeFailure, EpisodeId

logger = logging.getLogger(__name__)

Cleanup = Callable[[], Awaitable[Any]]
Ended = TypeVar("Ended")
AGENT_TIMEOUT: Final = "agent_timeout"


class HandledEpisodeError(Exception):
    """An episode failed in a way that its server understands."""

    def __init__(self, failure: EpisodeFailure) -> None:
        super().__init__(failure.failure_reason)
        self.failure = failure


class CleanupHandle:
    """Something that has to be closed once."""

    def __init__(self, name: str, callback: Cleanup, timeout_s: float) -> None:
        self.name = name
        self.is_done = False
        self._callback = callback
        self._timeout_s = timeout_s

    async def close(self) -> None:
        """Close it now. An error is raised, and the clean-up at the end tries once more."""
        await self.close_within(self._timeout_s)

    async def close_within(self, seconds: float) -> None:
        """Close it, unless it is closed already."""
        if self.is_done:
            return
        async with asyncio.timeout(seconds):
            await self._callback()
        self.is_done = True


class CleanupContext:
    """Everything that an episode has to close at its end, within one time limit."""

    def __init__(self, episode_id: EpisodeId, cleanup_timeout_seconds: float) -> None:
        self.episode_id = episode_id
        self.cleanup_timeout_seconds = cleanup_timeout_seconds
        self._handles: list[CleanupHandle] = []

    def register_cleanup(self, name: str, callback: Cleanup) -> CleanupHandle:
        """Have ``callback`` called at the end of the episode, before all that were registered earlier."""
        handle = CleanupHandle(name, callback, self.cleanup_timeout_seconds)
        self._handles.append(handle)
        return handle

    async def aclose(self) -> None:
        """Close everything that is not closed yet. An error is logged, and the next one is closed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.cleanup_timeout_seconds
        for handle in reversed(self._handles):
            try:
                await handle.close_within(max(end - loop.time(), 0))
            except Exception as error:  # noqa: BLE001 - what others registered must not keep the rest open
                reason = "out of time" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
                logger.warning("%s: %s could not be closed: %s", self.episode_id.capture_key, handle.name, reason)


async def finish(work: Coroutine[Any, Any, Ended]) -> Ended:
    """Await something to its end, even if the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


class EpisodeSlots:
    """How many episodes may run at once; None for any number."""

    def __init__(self, limit: int | None, queue_timeout_s: float | None) -> None:
        self._slots = asyncio.Semaphore(limit) if limit is not None else None
        self._queue_timeout_s = queue_timeout_s

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Wait for a free slot; a ``HandledEpisodeError`` if there is none in time."""
        if self._slots is None:
            yield
            return
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            reason = f"no free slot within {self._queue_timeout_s:g} s"
            raise HandledEpisodeError(
                EpisodeFailure(failure_reason=reason, terminal=False, stage="admission")
            ) from None
        try:
            yield
        finally:
            self._slots.release()


async def failure_or(ended: Awaitable[Ended], *, timeout_s: float | None) -> Ended | EpisodeFailure:
    """What an episode came to; a failure if it took too long or raised."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await ended
    except HandledEpisodeError as error:
        return error.failure
    except TimeoutError as error:
        if limit.expired():
            reason = f"the episode did not end within {timeout_s:g} s"
            return EpisodeFailure(failure_reason=reason, terminal=False, failure_kind=AGENT_TIMEOUT)
        return unexpected_failure(error)
    except Exception as error:  # noqa: BLE001 - the boundary between an environment and its callers
        return unexpected_failure(error)


def unexpected_failure(error: Exception) -> EpisodeFailure:
    """The failure of an episode whose server raised: it would most likely raise again."""
    logger.warning("an episode failed", exc_info=error)
    return EpisodeFailure(failure_reason=f"{type(error).__name__}: {error}"[:REASON_CHARS], terminal=True)
