"""The training tests need the extra ``train``; without it they are skipped, with the reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Test processes share the cores."""
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf", reason="needs the extra train")
    from tests.training.tiny import tiny_gguf

    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
