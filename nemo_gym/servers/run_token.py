"""The run's token: proof that a caller is the user who started the servers.

``ng_run`` writes a random token to a private file of the user. Commands of the same user read it there and send it to
the head server, which shows secrets to nobody else.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

TOKEN_HEADER = "X-NeMo-Gym-Run-Token"  # noqa: S105 - the name of a header


def token_path(port: int) -> Path:
    """The token file of the run whose head server has this port."""
    base = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rollout-gym" / f"head-{port}.token"


def read_run_token(port: int) -> str | None:
    """The token of a running head server on this machine, or None."""
    try:
        return token_path(port).read_text("utf-8").strip() or None
    except OSError:
        return None


@contextlib.contextmanager
def run_token(port: int) -> Iterator[str]:
    """A new token in a file that only this user can read; the file is removed when the run ends."""
    path = token_path(port)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    token = secrets.token_urlsafe(32)
    # Private from the moment it exists, and complete when it gets its name.
    aside = path.with_suffix(f".{os.getpid()}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(token)
    aside.replace(path)
    try:
        yield token
    finally:
        if read_run_token(port) == token:  # a later run on the same port may have written its own
            path.unlink(missing_ok=True)
