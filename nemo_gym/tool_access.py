"""Front door: how an agent reaches the tools of an episode. See ``nemo_gym.schemas.episodes``."""

from nemo_gym.schemas.episodes import (
    DirectHTTPToolAccess,
    MCPStreamableHTTPConnection,
    MCPToolAccess,
    ToolAccess,
)

__all__ = ["DirectHTTPToolAccess", "MCPStreamableHTTPConnection", "MCPToolAccess", "ToolAccess"]
