"""The packages that are broken: well-known, pure Python, with tests in their source archives and a permissive licence.

They are fetched from the package index on first use, checked against a recorded SHA-256, and kept in the user's cache.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from nemo_gym.data.source_archives import SourceArchive, fetch_source, read_source
from nemo_gym.data.wheels import Wheel, cache_folder, unpack_wheels
from nemo_gym.errors import ConfigError, did_you_mean
from nemo_gym.io.files import user_cache

Split = Literal["train", "validation"]


@dataclass(frozen=True, slots=True)
class Package:
    """A package: the folder that is imported from, the part that is broken, and its tests, as paths in the archive."""

    archive: SourceArchive
    licence: str
    root: str
    source: str
    tests: str
    split: Split = "train"
    left_out: tuple[str, ...] = ()  # test files that need other packages, a network or much time

    @property
    def name(self) -> str:
        """The name by which it is chosen."""
        return self.archive.package


def _package(name: str, version: str, sha256: str, **parts: Any) -> Package:
    return Package(SourceArchive(name, version, sha256), **parts)


_LISTED: Final = (
    _package("boltons", "26.2.0", "d39cfd15c1a1c3bd4d705c82252fa9edb8e4f5e8cc039f8e39afac7b1b47e92c",
             licence="BSD-3-Clause", root="", source="boltons", tests="tests", left_out=("tests/test_socketutils.py",)),
    _package("cachetools", "8.0.0", "5ed01bd676800d51f0025605e4fd8ad0891550513e7b0a4c3da478463764e5c3",
             licence="MIT", root="src", source="src/cachetools", tests="tests"),
    _package("h11", "0.16.0", "4e35b956cf45792e4caa5885e69fba00bdbc6ffafbfa020300e549b208ee5ff1",
             licence="MIT", root="", source="h11", tests="h11/tests",
             left_out=("h11/tests/test_against_stdlib_http.py",)),
    _package("hyperframe", "6.1.0", "f630908a00854a7adeabd6382b43923a4c4cd4b821fcb527e6ab9e15382a3b08",
             licence="MIT", root="src", source="src/hyperframe", tests="tests"),
    _package("rfc3986", "2.0.0", "97aacf9dbd4bfd829baad6e6309fa6573aaf1be3f6fa735c8ab05e46cecb261c",
             licence="Apache-2.0", root="src", source="src/rfc3986", tests="tests"),
    _package("semver", "3.1.1", "149b26cabada6f63212f97e94505d21578cb1d280cf714827f328d5e70765fea",
             licence="BSD-3-Clause", root="src", source="src/semver", tests="tests"),
    _package("sqlparse", "0.6.1", "ca722573f848ff2d30e40ea30f53a104b7dea7635ea9285891263eb2c58fb6e7",
             licence="BSD-3-Clause", root="", source="sqlparse", tests="tests"),
    _package("toolz", "1.2.0", "9667a038e9d6ecba37995e26cb2f59ec6420b6ad8dd9677de59db9b956b08490",
             licence="BSD-3-Clause", root="", source="toolz", tests="toolz"),
    _package("parse", "1.22.4", "706d458feed5a81b02768d3156e8070baf6cee7d150a3a3c0cd43101a875c3b5",
             licence="MIT", root="", source="parse", tests="tests", split="validation"),
    _package("tabulate", "0.10.0", "e2cfde8f79420f6deeffdeda9aaec3b6bc5abce947655d17ac662b126e48a60d",
             licence="MIT", root="", source="tabulate", tests="test", split="validation"),
)  # fmt: skip
PACKAGES: Final[Mapping[str, Package]] = {package.name: package for package in _LISTED}
TEST_RUNNER: Final = (
    Wheel("pytest", "8.4.2", "872f880de3fc3a5bdc88a11b39c9710c3497a547cfa9320bc3c5e62fbf272e79"),
    Wheel("pluggy", "1.6.0", "e920276dd6813095e9377c0bc5566d94c932c33b27a3e3945d8389c374dd4746"),
    Wheel("iniconfig", "2.1.0", "9deba5723312380e77435581c6bf4935c94cbfab9b1ed33ef8d238ea168eb760"),
    Wheel("packaging", "25.0", "29572ef2b1f17581046b3a2227d5c611fb25ec70ca1ba8554b24b0e69331a484"),
    Wheel("pygments", "2.19.2", "86540386c03d588bb81d44bc3928634ff26449851e99741617ecb9037ee5ec0b"),
    Wheel("exceptiongroup", "1.3.0", "4d111e6e0c13d0644cad6ddaa7ed0261a0b36971f6d23e7ec9b4b9097da78a10"),
    Wheel("typing_extensions", "4.15.0", "f0fa19c6845758ab08074a0cfa8b7aecb71c999ca73d62883bc25cc018c4e548"),
)


def package_named(name: str) -> Package:
    """A package by its name."""
    if name not in PACKAGES:
        raise ConfigError(
            f"no package {name!r} is prepared", hint=did_you_mean(name, PACKAGES, available="prepared packages")
        )
    return PACKAGES[name]


@cache
def files_of(name: str) -> Mapping[str, bytes]:
    """The files of a package's archive that matter: its source, its tests, and what is beside them."""
    package = package_named(name)
    path = fetch_source(package.archive, user_cache(os.environ) / "sources")
    files = read_source(path)
    return {name: content for name, content in files.items() if not _is_ballast(name)}


def pytest_folder() -> Path:
    """The folder with pytest, for programs in a sandbox."""
    return unpack_wheels(TEST_RUNNER, cache_folder(os.environ))


def _is_ballast(path: str) -> bool:
    return ".egg-info/" in path or path.startswith((".github/", "docs/", "benchmark"))
