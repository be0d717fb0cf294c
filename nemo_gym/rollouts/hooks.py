"""Whether an agent's metrics are the default ones, so that they can be computed from numbers alone.

That can be told only of servers in this process: the handler of ``/aggregate_metrics`` must be that of the base class,
and neither hook may be replaced. An agent that hands the question on to its resources server is as good as that server.
Of everything else nothing is known, and it has to be asked.
"""

from collections.abc import Mapping
from typing import Any, Final

from nemo_gym.metrics.aggregate import AggregateMetricsMixin

METRICS_PATH: Final = "/aggregate_metrics"
_DEFAULT: Final = frozenset(
    {
        "nemo_gym.base_resources_server.SimpleResourcesServer.aggregate_metrics",
        "nemo_gym.base_responses_api_agent.SimpleResponsesAPIAgent.aggregate_metrics",
    }
)
_HANDS_ON: Final = frozenset({"responses_api_agents.simple_agent.app.SimpleAgent.aggregate_metrics"})


def has_default_metrics(servers: Mapping[str, Any], name: str) -> bool:
    """Whether a server, given all those of this process, would answer with the default metrics."""
    handler = _handler(servers.get(name))
    server = getattr(handler, "__self__", None)
    if server is None:
        return False
    called = f"{handler.__module__}.{handler.__qualname__}"
    if called in _HANDS_ON:
        return has_default_metrics(servers, server.config.resources_server.name)
    hooks = ("compute_metrics", "get_key_metrics")
    return called in _DEFAULT and all(_is_default(server, hook) for hook in hooks)


def _handler(local: Any) -> Any:
    """What a server of this process calls for its metrics."""
    for route in local.app.routes if local is not None else ():
        if getattr(route, "path", None) == METRICS_PATH and "POST" in (getattr(route, "methods", None) or ()):
            return route.endpoint
    return None


def _is_default(server: Any, hook: str) -> bool:
    return getattr(getattr(server, hook, None), "__func__", None) is getattr(AggregateMetricsMixin, hook)
