"""Front door: a sandbox that an agent is given. See ``nemo_gym.schemas.episodes``."""

from nemo_gym.schemas.episodes import DirectSandboxConnection, SandboxAccess

__all__ = ["DirectSandboxConnection", "SandboxAccess"]
