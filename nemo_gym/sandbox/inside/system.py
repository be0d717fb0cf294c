"""Which parts of the system a box can see: programs, libraries and the interpreter; not homes, not data, not packages.

Installed packages are hidden unless they are requested. Most are not secret, but an environment that is installed as a
package contains the answers to its tasks.
"""

import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_PROGRAMS: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# What programs expect below /etc and what reveals nothing about the machine's users.
_SETTINGS: Final = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
ACCOUNTS: Final = {
    "/etc/passwd": "sandbox:x:1000:1000::/box:/bin/sh\n",
    "/etc/group": "sandbox:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_PACKAGES: Final = ("site-packages", "dist-packages")


def readable(extra: Iterable[str] = ()) -> list[str]:
    """The outermost folders and files that a box can read."""
    wanted = (*_PROGRAMS, *_SETTINGS, sys.base_prefix, sys.base_exec_prefix, *extra)
    found = sorted({path for path in map(os.path.abspath, wanted) if os.path.exists(path)})
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found if other != path)]


def hidden(extra: Iterable[str] = ()) -> list[str]:
    """The folders of installed packages, except those that were requested."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = [os.path.join(prefix, "lib", version) for prefix in (sys.base_prefix, sys.base_exec_prefix)]
    shared = [f"{prefix}/{folder}" for prefix in ("/usr/lib", "/usr/local/lib") for folder in _pythons(prefix)]
    paths = {os.path.join(folder, kind) for folder in (*own, *shared) for kind in _PACKAGES}
    paths.update(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    requested = tuple(map(os.path.abspath, extra))
    return sorted(path for path in paths if os.path.isdir(path) and path not in requested)


@dataclass(frozen=True, slots=True)
class VisiblePaths:
    """What can be read once hidden parts are excluded: whole paths, and folders that can only be listed."""

    whole: list[str]
    listed: list[str]


def visible_paths(paths: Iterable[str], secret: Iterable[str]) -> VisiblePaths:
    """Split folders that contain hidden ones, because a Landlock rule can only allow, and covers everything below.

    Links are left out, because rules apply to their targets.
    """
    visible = VisiblePaths([], [])
    for path in (path for path in paths if not os.path.islink(path)):
        inner = [other for other in secret if other == path or other.startswith(f"{path}/")]
        if not inner:
            visible.whole.append(path)
        elif path not in inner:
            below = visible_paths((entry.path for entry in os.scandir(path)), inner)
            visible.whole.extend(below.whole)
            visible.listed.extend((path, *below.listed))
    return visible


def environment(folder: str) -> dict[str, str]:
    """The environment variables of a program; only the location of the interpreter is taken from the host."""
    return {
        "HOME": folder,
        "TMPDIR": os.path.join(folder, "tmp"),
        "PATH": f"{os.path.dirname(os.path.realpath(sys.executable))}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "USER": "sandbox",
        # Libraries that start a thread for each core would hit the limits on memory and processes.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _pythons(prefix: str) -> list[str]:
    return [name for name in os.listdir(prefix) if name.startswith("python")] if os.path.isdir(prefix) else []
