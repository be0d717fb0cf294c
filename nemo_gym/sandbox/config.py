"""Front door: the configuration of sandbox providers. See ``nemo_gym.sandbox.provider_registry``."""

from nemo_gym.sandbox.provider_registry import resolve_provider_config, resolve_provider_metadata

__all__ = ["resolve_provider_config", "resolve_provider_metadata"]
