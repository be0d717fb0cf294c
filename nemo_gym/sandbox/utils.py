"""Front door: small things that servers with sandboxes need: other names for images, and limits on threads."""

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["CPU_CAP_ENV_VARS", "cpu_cap_env", "rewrite_image"]

# What common programs and libraries look at to decide how many threads to start.
CPU_CAP_ENV_VARS: Final = (
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
    "PYTHON_CPU_COUNT",
    "NUMBA_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "POLARS_MAX_THREADS",
    "PYTEST_XDIST_AUTO_NUM_WORKERS",
    "DJANGO_TEST_PROCESSES",
    "GOMAXPROCS",
    "CARGO_BUILD_JOBS",
    "RAYON_NUM_THREADS",
    "RUST_TEST_THREADS",
    "UV_THREADPOOL_SIZE",
    "CMAKE_BUILD_PARALLEL_LEVEL",
)


def cpu_cap_env(cpu: float | None) -> dict[str, str]:
    """Variables that keep programs from starting more threads than they have processors; empty without a limit."""
    return {} if cpu is None else dict.fromkeys(CPU_CAP_ENV_VARS, str(max(1, int(cpu))))


def rewrite_image(image: str | None, rewrites: Sequence[Mapping[str, str]]) -> str | None:
    """The image under the name that the first fitting rule ``{from: …, to: …}`` gives it."""
    for rule in rewrites or ():
        if image is not None and image.startswith(rule["from"]):
            return rule["to"] + image.removeprefix(rule["from"])
    return image
