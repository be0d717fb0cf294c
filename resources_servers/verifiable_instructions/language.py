"""Detects the language of text with the package ``langdetect``; the result for the same text is always the same."""

import functools
import importlib
from typing import Any, Final

from nemo_gym.errors import ConfigError

INSTALL: Final = (
    "pip install 'rollout-gym[environments]', or -r resources_servers/verifiable_instructions/requirements.txt"
)
# More text than this does not make the result better, only slower.
SAMPLE: Final = 3_000


def language_of(text: str) -> str | None:
    """The code of the language; None if it can't be determined."""
    library = _library()
    detector = library.create()
    detector.seed = 0  # it samples at random, and would give short text another language each time
    detector.append(text[:SAMPLE])
    try:
        found: str = detector.detect()
    except _error():
        return None
    return found


@functools.cache
def _library() -> Any:
    try:
        factory = importlib.import_module("langdetect.detector_factory")
    except ModuleNotFoundError:
        raise ConfigError("the package 'langdetect' is not installed", hint=INSTALL) from None
    factory.init_factory()
    return factory._factory  # noqa: SLF001 - the package has no public way to seed a single detector


@functools.cache
def _error() -> type[Exception]:
    error: type[Exception] = importlib.import_module("langdetect.lang_detect_exception").LangDetectException
    return error
