"""Everything that follows a run from outside, opened as its options say: metrics for Prometheus, spans, trackers.

All of it is fed with outcomes that are already saved, and needs extras that are imported only on request. If the
receiving system fails, the run goes on.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.options import find_tracker
from nemo_gym.rollouts.run import RunListener
from nemo_gym.telemetry.trackers import TrackedRun, Tracker, tracking


@asynccontextmanager
async def telemetry(run: TrackedRun) -> AsyncIterator[list[RunListener]]:
    """The listeners that the options ask for, open for the duration of the context."""
    options = run.options
    listeners: list[RunListener] = []
    async with AsyncExitStack() as stack:
        if options.metrics_port is not None:
            module = import_extra("nemo_gym.telemetry.prometheus_metrics", "metrics_port", extra="prometheus")
            port = module.serving_metrics(options.metrics_host, options.metrics_port)
            listeners.append(await stack.enter_async_context(port))
        if options.otel_endpoint is not None:
            module = import_extra("nemo_gym.telemetry.span_sender", "otel_endpoint", extra="otel")
            listeners.append(await stack.enter_async_context(module.sending(options.otel_endpoint, run.files)))
        if options.trackers:
            kinds = {name: load_tracker(name) for name in options.trackers}
            listeners.append(await stack.enter_async_context(tracking(run, kinds)))
        yield listeners


def load_tracker(name: str) -> type[Tracker]:
    """The class that a package has registered under a name."""
    point = find_tracker(name)
    extra = name if point.value.startswith("nemo_gym.") else ""
    kind = _load(point.load, f"the tracker {name}", extra)
    if not (isinstance(kind, type) and issubclass(kind, Tracker)):
        base = f"{Tracker.__module__}.{Tracker.__name__}"
        raise ConfigError(f"the tracker {name} is registered as {point.value}, which is not a subclass of {base}")
    return kind


def import_extra(module: str, wanted_by: str, *, extra: str) -> Any:
    """Import one of our modules that needs an extra."""
    return _load(partial(import_module, module), wanted_by, extra)


def _load(load: Callable[[], Any], wanted_by: str, extra: str) -> Any:
    """Import something, and say what to install if a package is missing."""
    try:
        return load()
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("nemo_gym"):  # a bug of ours, not a missing package
            raise
        package = f"'rollout-gym[{extra}]'" if extra else missing
        raise ConfigError(f"{wanted_by} needs the package {missing}", hint=f"pip install {package}") from None
