"""An MCP server to try the environment with: a warehouse whose stock belongs to one client session.

python -m resources_servers.mcp_tools.example_server              over standard input and output
python -m resources_servers.mcp_tools.example_server --port 8765  over HTTP, at http://127.0.0.1:8765/mcp
"""

import argparse
from collections import defaultdict
from typing import Any

import uvicorn

try:
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ModuleNotFoundError:  # version 1 of the package
    from mcp.server.fastmcp import Context  # type: ignore[attr-defined, no-redef]
    from mcp.server.fastmcp import FastMCP as MCPServer  # type: ignore[attr-defined, no-redef]
    from mcp.server.fastmcp.exceptions import ToolError  # type: ignore[import-not-found, no-redef]

STOCK = {"apples": 42, "bolts": 1200, "candles": 7}


def warehouse() -> MCPServer:
    """The server, with full shelves for every session."""
    server = MCPServer("warehouse")
    shelves: defaultdict[str, dict[str, int]] = defaultdict(lambda: dict(STOCK))

    def shelf(context: Any) -> dict[str, int]:
        request = context.request_context.request
        return shelves[request.headers.get("mcp-session-id", "") if request is not None else ""]

    @server.tool()
    async def count(item: str, ctx: Context) -> str:
        """Say how many of an item are in the warehouse."""
        if item not in STOCK:
            raise ToolError(f"there are no {item}; there are {', '.join(STOCK)}")
        return str(shelf(ctx)[item])

    @server.tool()
    async def take(item: str, number: int, ctx: Context) -> str:
        """Take a number of an item out of the warehouse."""
        left = shelf(ctx).get(item, 0) - number
        if left < 0:
            raise ToolError(f"there are not {number} {item}")
        shelf(ctx)[item] = left
        return f"took {number} {item}"

    return server


def main() -> None:
    """Serve until the client leaves, or forever over HTTP."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, help="listen on this port instead of standard input")
    port = parser.parse_args().port
    if port is None:
        warehouse().run()
    else:
        uvicorn.run(warehouse().streamable_http_app(), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
