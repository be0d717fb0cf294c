"""Front door: a resources server's routes as tools of the Model Context Protocol."""

from typing import Any

from fastapi import FastAPI
from starlette.routing import Route

from nemo_gym.servers.mcp_endpoint import MCPEndpoint
from nemo_gym.servers.mcp_tools import NEMO_GYM_MCP_SESSION_TOKEN_HEADER

__all__ = ["TOKEN_HEADER", "maybe_auto_expose"]

TOKEN_HEADER = NEMO_GYM_MCP_SESSION_TOKEN_HEADER


def maybe_auto_expose(server: Any, app: FastAPI) -> dict[str, Any] | None:
    """Offer the routes of an app as tools under ``/mcp`` if its server asks for it; the tools by name, or None.

    The app of a ``SimpleResourcesServer`` has the endpoint already.
    """
    if not server.config.expose_tools_over_mcp:
        return None
    if not any(getattr(route, "path", None) == server.mcp_url_path for route in app.routes):
        endpoint = MCPEndpoint(server.mcp_server(app), name=server.config.name)
        app.router.routes.insert(0, Route(server.mcp_url_path, endpoint, include_in_schema=False))
    return dict(server.exposed_tools(app).by_name)
