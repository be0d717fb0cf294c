"""Front door: sandboxes in containers. See ``nemo_gym.sandbox.session_providers``."""

from nemo_gym.sandbox.session_providers import DockerCreateConfig, DockerProvider

__all__ = ["DockerCreateConfig", "DockerProvider"]
