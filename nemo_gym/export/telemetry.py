"""What a run publishes while it is running: metrics for Prometheus to scrape, and traces sent to an endpoint.

Both are made from outcomes that are already saved, and need extras that are imported only on request. A failure of the
receiving system never stops the run.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.options import TelemetryOptions
from nemo_gym.rollouts.outcome import Outcome
from nemo_gym.rollouts.progress import Load
from nemo_gym.rollouts.run import Listener


@dataclass(slots=True)
class Telemetry:
    """The listeners of a run."""

    listeners: list[Listener] = field(default_factory=list)
    on_start: Callable[[Load], None] | None = None

    @property
    def listener(self) -> Listener | None:
        """All listeners combined into one; None if there are none."""
        if len(self.listeners) < 2:
            return self.listeners[0] if self.listeners else None
        return self._notify_all

    def _notify_all(self, outcomes: Sequence[Outcome]) -> None:
        for listener in self.listeners:
            listener(outcomes)


@asynccontextmanager
async def telemetry(
    options: TelemetryOptions, files: RunFiles, listener: Listener | None = None
) -> AsyncIterator[Telemetry]:
    """Publish what was requested, and inform the given listener, for the duration of the context."""
    monitor = Telemetry([listener] if listener is not None else [])
    async with AsyncExitStack() as stack:
        if options.metrics_port is not None:
            module = import_extra("nemo_gym.export.metrics_port", "metrics_port", extra="prometheus")
            port = await stack.enter_async_context(module.metrics_port(options.metrics_host, options.metrics_port))
            monitor.listeners.append(port.count)
            monitor.on_start = port.meters.follow
        if options.otel_endpoint is not None:
            module = import_extra("nemo_gym.export.trace_sender", "otel_endpoint", extra="otel")
            monitor.listeners.append(await stack.enter_async_context(module.sending(options.otel_endpoint, files)))
        yield monitor


def import_extra(module: str, wanted_by: str, *, extra: str) -> Any:
    """Import one of our modules that needs an extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("nemo_gym"):  # a bug of ours, not a missing package
            raise
        raise ConfigError(
            f"{wanted_by} needs the package {error.name}", hint=f"pip install 'rollout-gym[{extra}]'"
        ) from None
