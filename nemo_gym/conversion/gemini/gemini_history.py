"""Converts conversations of Gemini's API to items of the Responses API. Pure.

Calls may have no ids there. Such a call gets one by its place, and a result belongs to the first open call of its name.
What a model thought travels in the signature of the part after it, so that it comes back whether or not a client shows
thoughts.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from nemo_gym.conversion.new_responses import Item
from nemo_gym.conversion.parts import UnsupportedContentError, reasoning_texts
from nemo_gym.schemas.generate_content import camel_keys

THOUGHTS: Final = "ng_thoughts"
_AUDIO: Final = {"wav": "wav", "x-wav": "wav", "mp3": "mp3", "mpeg": "mp3"}


@dataclass
class _History:
    items: list[Item] = field(default_factory=list)
    open_calls: list[tuple[str, str]] = field(default_factory=list)  # id and name
    calls: int = 0
    thoughts: list[str] = field(default_factory=list)  # that a client repeated before their signature

    def add_part(self, role: str, part: Mapping[str, Any]) -> None:
        """Add a part to the message of its side, or begin one."""
        converted = _message_part(role, part)
        last = self.items[-1] if self.items else None
        if last is not None and last["type"] == "message" and last["role"] == role:
            last["content"].append(converted)
        else:
            self.items.append({"role": role, "content": [converted], "type": "message"})

    def name_call(self, call: Mapping[str, Any]) -> str:
        """The id of a call."""
        self.calls += 1
        name = call.get("id") or f"call_{self.calls}"
        self.open_calls.append((name, call["name"]))
        return str(name)

    def name_result(self, result: Mapping[str, Any]) -> str:
        """The id of the call that a result belongs to."""
        given = result.get("id")
        found = next((one for one in self.open_calls if given == one[0]), None)
        if found is None and not given:
            found = next((one for one in self.open_calls if one[1] == result.get("name")), None)
        if found is None:
            return str(given or f"call_{result.get('name')}")
        self.open_calls.remove(found)
        return found[0]


def contents_to_items(contents: Iterable[Mapping[str, Any]]) -> list[Item]:
    """All turns as items."""
    history = _History()
    for content in contents:
        role = "assistant" if content.get("role") == "model" else "user"
        for part in content.get("parts") or ():
            _add(history, role, camel_keys(part))
    return history.items


def _add(history: _History, role: str, part: Mapping[str, Any]) -> None:
    if part.get("thought"):
        history.thoughts.append(str(part.get("text") or ""))
    remembered = _remembered(part.get("thoughtSignature"))
    if remembered is not None:
        history.items.append(remembered)
    elif history.thoughts and not part.get("thought"):
        summary = [{"type": "summary_text", "text": text} for text in history.thoughts]
        history.items.append({"type": "reasoning", "id": f"rs_{len(history.items)}", "summary": summary})
    if part.get("thought"):
        return
    history.thoughts = []
    if (call := part.get("functionCall")) is not None:
        arguments = orjson.dumps(call.get("args") or {}).decode()
        name = history.name_call(call)
        history.items.append({"type": "function_call", "call_id": name, "name": call["name"], "arguments": arguments})
    elif (result := part.get("functionResponse")) is not None:
        output = _output(camel_keys(result))
        history.items.append({"type": "function_call_output", "call_id": history.name_result(result), "output": output})
    elif part.get("text") != "":
        history.add_part(role, part)


def signature_of(item: Mapping[str, Any]) -> str:
    """What a client has to repeat for a reasoning item to come back as it was."""
    return base64.b64encode(orjson.dumps({THOUGHTS: {key: item[key] for key in item if key != "type"}})).decode()


def _remembered(signature: Any) -> Item | None:
    """The reasoning item of a signature; None for those of others, which only their endpoints can read."""
    if not signature:
        return None
    try:
        given = orjson.loads(base64.urlsafe_b64decode(str(signature).replace("+", "-").replace("/", "_") + "=="))
    except ValueError:
        return None
    found = given.get(THOUGHTS) if isinstance(given, dict) else None
    return {"type": "reasoning", **found} if isinstance(found, dict) else None


def thoughts_of(item: Mapping[str, Any]) -> str:
    """What a reasoning item says."""
    return "\n".join(reasoning_texts(item))


def _message_part(role: str, part: Mapping[str, Any]) -> dict[str, Any]:
    if "text" in part:
        return {"type": "output_text" if role == "assistant" else "input_text", "text": part["text"]}
    if (data := part.get("inlineData")) is not None:
        data = camel_keys(data)
        return _file_part(data.get("mimeType") or "", data.get("data") or "", data.get("displayName"))
    if (named := part.get("fileData")) is not None:
        named = camel_keys(named)
        address = named["fileUri"]
        if (named.get("mimeType") or "").startswith("image/"):
            return {"type": "input_image", "image_url": address, "detail": "auto"}
        return {"type": "input_file", "file_url": address}
    raise UnsupportedContentError(f"the Responses API has no equivalent for a part of a content with {sorted(part)}")


def _file_part(kind: str, data: str, name: str | None) -> dict[str, Any]:
    general, _, special = kind.partition("/")
    if general == "image":
        return {"type": "input_image", "image_url": f"data:{kind};base64,{data}", "detail": "auto"}
    if general == "audio" and special in _AUDIO:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO[special]}}
    if general in ("text", "application"):
        file = {"type": "input_file", "file_data": f"data:{kind};base64,{data}"}
        return file | {"filename": name or f"file.{special}"}
    raise UnsupportedContentError(f"the Responses API has no equivalent for data of type {kind!r}")


def _output(result: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    """What a tool returned: its text if it says nothing else."""
    response = result.get("response") or {}
    only = next(iter(response.values())) if len(response) == 1 else None
    text = only if isinstance(only, str) and "output" in response else orjson.dumps(response).decode()
    parts = [_message_part("user", camel_keys(part)) for part in result.get("parts") or ()]
    return [{"type": "input_text", "text": text}, *parts] if parts else text
