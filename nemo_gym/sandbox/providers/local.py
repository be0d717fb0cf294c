"""Front door: sandboxes that isolate nothing. See ``nemo_gym.sandbox.local_provider``."""

from nemo_gym.sandbox.local_provider import LocalProvider

__all__ = ["LocalProvider"]
