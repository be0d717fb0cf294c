"""The texts of a rollout that stand for it in a list: how the question begins, and the answer."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from nemo_gym.metrics.transcript import output_of
from nemo_gym.schemas.rows import RESPONSES_CREATE_PARAMS_KEY_NAME

LONGEST_PREVIEW: Final = 200
_LOOKED_AT: Final = 300  # characters: it may begin with blanks
_QUESTION_FIELDS: Final = ("question", "prompt", "problem")


def preview_question(record: Mapping[str, Any]) -> str | None:
    """What the user asked first."""
    params = record.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    given = params.get("input") if type(params) is dict else None
    if isinstance(given, str):
        return preview(given)
    text = _said_by("user", given) if isinstance(given, list) else None
    if text is None:
        text = _said_by("user", output_of(record) or ())
    if text is None:
        text = next((record[name] for name in _QUESTION_FIELDS if isinstance(record.get(name), str)), None)
    return None if text is None else preview(text)


def preview_answer(record: Mapping[str, Any]) -> str | None:
    """What the assistant said last; of a rollout that failed, why."""
    text = _said_by("assistant", reversed(output_of(record) or ()))
    if text is None and isinstance(record.get("error_message"), str):
        text = record["error_message"]
    return None if text is None else preview(text)


def _said_by(role: str, items: Iterable[Any]) -> str | None:
    for item in items:
        if type(item) is dict and item.get("role") == role:
            text = _content(item.get("content"))
            if text:
                return text
    return None


def _content(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if type(part) is dict else part
        if isinstance(text, str) and text:
            return text
    return None


def preview(text: str) -> str:
    """The beginning of a text, on one line."""
    return plain_text(text[:_LOOKED_AT].strip().replace("\n", " ").replace("\t", " ")[:LONGEST_PREVIEW])


def plain_text(text: str) -> str:
    """The text without what databases and terminals cannot hold: NUL, and halves of surrogate pairs."""
    if "\0" in text:
        text = text.replace("\0", "�")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
