"""Front door: sandbox providers by name. See ``nemo_gym.sandbox.provider_registry``."""

from nemo_gym.sandbox.provider_registry import create_provider, get_provider_class, list_providers, register_provider

__all__ = ["create_provider", "get_provider_class", "list_providers", "register_provider"]
