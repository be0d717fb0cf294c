"""What goes wrong with sandboxes.

    RolloutError
    └── SandboxError                          a sandbox did not do its work; nothing is known about the program
        └── SandboxCreateError                it could not be made
            └── SandboxCreateVerificationError    it was made, but does not isolate what it should

What a program does wrong is not an error but a result. None of these is ever a reward.
"""

from nemo_gym.errors import RolloutError


class SandboxError(RolloutError):
    """A sandbox failed, so whatever it was to find out is unknown."""


class SandboxCreateError(SandboxError):
    """A sandbox could not be made."""


class SandboxCreateVerificationError(SandboxCreateError):
    """A sandbox was made but is not what was asked for."""
