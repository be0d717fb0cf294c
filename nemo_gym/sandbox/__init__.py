"""Runs untrusted code: with limits, without a network, in a folder that is deleted afterwards.

For programs: ``open_runner`` and ``sandbox_runner``. For whole rollouts: ``World``, which a runner opens. For servers
written against NeMo Gym's interface: ``AsyncSandbox``, ``Sandbox`` and their types. Names are loaded on first use,
because the code that runs inside boxes (``inside``) is part of this package too, and must not load anything that it
does not need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nemo_gym.sandbox.boxes import Runner, WorldPool
    from nemo_gym.sandbox.inside.limits import ProgramEnding, Result, SandboxLimits
    from nemo_gym.sandbox.interface import (
        ExecResult,
        SandboxCreateError,
        SandboxCreateVerificationError,
        SandboxEndpoint,
        SandboxError,
        SandboxExecResult,
        SandboxHandle,
        SandboxProvider,
        SandboxResources,
        SandboxSpec,
        SandboxStatus,
    )
    from nemo_gym.sandbox.provider_registry import (
        create_provider,
        get_provider_class,
        list_providers,
        register_provider,
        resolve_provider_config,
        resolve_provider_metadata,
    )
    from nemo_gym.sandbox.runners import Isolation, LazyRunner, SandboxSettings, open_runner, sandbox_runner
    from nemo_gym.sandbox.sandboxes import AsyncSandbox, Sandbox
    from nemo_gym.sandbox.utils import rewrite_image
    from nemo_gym.sandbox.worlds import (
        WORLD_LIMITS,
        World,
        WorldFile,
        WorldFileError,
        WorldProcess,
        WorldSnapshot,
        WorldSpec,
    )

__all__ = [
    "WORLD_LIMITS",
    "AsyncSandbox",
    "ExecResult",
    "Isolation",
    "LazyRunner",
    "ProgramEnding",
    "Result",
    "Runner",
    "Sandbox",
    "SandboxCreateError",
    "SandboxCreateVerificationError",
    "SandboxEndpoint",
    "SandboxError",
    "SandboxExecResult",
    "SandboxHandle",
    "SandboxLimits",
    "SandboxProvider",
    "SandboxResources",
    "SandboxSettings",
    "SandboxSpec",
    "SandboxStatus",
    "World",
    "WorldFile",
    "WorldFileError",
    "WorldPool",
    "WorldProcess",
    "WorldSnapshot",
    "WorldSpec",
    "create_provider",
    "get_provider_class",
    "list_providers",
    "open_runner",
    "register_provider",
    "resolve_provider_config",
    "resolve_provider_metadata",
    "rewrite_image",
    "sandbox_runner",
]

_MODULES: Final = (
    "boxes",
    "inside.limits",
    "interface",
    "provider_registry",
    "runners",
    "sandboxes",
    "utils",
    "worlds",
    "world_pool",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(import_module, (f"{__name__}.{short}" for short in _MODULES)):
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
