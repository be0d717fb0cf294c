"""The exception tree of the project.

    Exception
    ├── ConfigError        the user can fix it: what is wrong, where, and what to do
    │   └── …              the named subclasses live in ``config_types``
    └── RolloutError       one rollout went wrong: it is recorded as data, its siblings go on

Anything else that escapes is a bug and is allowed to crash.
"""


class ConfigError(Exception):
    """A mistake in a command, file or setting. The command line prints it without a traceback."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class RolloutError(Exception):
    """One rollout failed. It is classified once, recorded, and never ends the run."""
