"""Prints the tools of an MCP server as rows have them in ``responses_create_params.tools``.

python -m resources_servers.mcp_tools.catalog -- npx some-mcp-server --with arguments
python -m resources_servers.mcp_tools.catalog --url http://127.0.0.1:8765/mcp
"""

import argparse
import asyncio
import json
import sys
from typing import Any

from resources_servers.mcp_tools.connection import MCPServerAddress, RolloutSession


async def tools_of(address: MCPServerAddress) -> list[dict[str, Any]]:
    """Ask a server for its tools."""
    session = RolloutSession(address, slots=asyncio.Semaphore(1), idle_s=60)
    try:
        return await session.tools()
    finally:
        await session.close()


def main(arguments: list[str] | None = None) -> None:
    """Print the tools as JSON, ready to be put into rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the address of a server that listens")
    parser.add_argument("command", nargs="*", help="the program to start")
    given = parser.parse_args(arguments)
    if bool(given.url) == bool(given.command):
        parser.error("give either a command or --url")
    tools = asyncio.run(tools_of(MCPServerAddress(command=given.command, url=given.url)))
    sys.stdout.write(json.dumps(tools, indent=2) + "\n")


if __name__ == "__main__":
    main()
