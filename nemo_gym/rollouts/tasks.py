"""The task file, and the prompt templates that turn a task into a conversation.

Tasks are read as a stream: a file of any size needs the memory of one line. Lines beyond the limit are not looked at.
The file may be compressed with gzip or Zstandard.

Templates are Python format strings over the top-level fields of a row: ``{question}``, ``{choices[0]}``,
``{price:.2f}``. Braces meant literally are doubled. What a field contains is inserted as it is and is never itself read
as a template.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from json import JSONDecodeError
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel

from nemo_gym.errors import ConfigError
from nemo_gym.io.compressed import DAMAGED, open_compressed
from nemo_gym.io.files import run_stem
from nemo_gym.io.json import decode_finite
from nemo_gym.schemas.record import Record
from nemo_gym.schemas.rows import RESPONSES_CREATE_PARAMS_KEY_NAME

BUFFER_BYTES = 1 << 20
IDENTITY_BYTES = 16
TABLES = {"parquet": "Parquet", "csv": "CSV"}
UTF8_MARK = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Task(NamedTuple):
    """One line of a task file."""

    number: int  # counted from 0, as rows are numbered everywhere else
    identity: bytes  # a digest of the line's text: equal lines are the same task
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of the tasks: those whose index leaves ``index`` when divided by ``count``.

    Each task is in one part, and stays there when the task file grows at its end.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The part that ``3/16`` stands for."""
        index, _, number = text.partition("/")
        if not (index.isdecimal() and number.isdecimal() and int(index) < int(number)):
            raise ValueError(f"{text!r} is not a part of the tasks: write 0/16 for the first of 16, 15/16 for the last")
        return cls(int(index), int(number))

    def has(self, task_index: int) -> bool:
        """Whether a task is in this part."""
        return task_index % self.count == self.index

    def output(self, path: Path) -> Path:
        """The file that this part of an output goes to; a name that already says which part it is stays as it is."""
        digits = len(str(self.count - 1))
        part = f"-{self.index:0{digits}}-of-{self.count}"
        stem = run_stem(path)
        says_part = stem.endswith(part) or re.search(rf"[-_.](?:chunk|part|shard)[-_.]?0*{self.index}$", stem)
        return path if says_part else path.with_name(f"{stem}{part}{path.name.removeprefix(stem)}")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def read_tasks(path: Path, limit: int | None = None) -> Iterator[Task]:
    """The tasks of a file, at most ``limit`` of them: none or 0 means all, a negative number means none."""
    last = max(limit, 0) if limit else None
    with _readable(path), open_compressed(path, buffering=BUFFER_BYTES) as file:
        for number, line in enumerate(islice(file, last)):
            text = line.rstrip(b"\r\n")
            if number == 0:
                text = text.removeprefix(UTF8_MARK)
                _check_form(text, path)
            # Not sha256: OpenSSL takes as long to look up the algorithm as to hash a short line.
            identity = blake2b(text, digest_size=IDENTITY_BYTES).digest()
            yield Task(number, identity, _fields(text, path, number + 1))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Name the file that can't be read; otherwise the error would blame the plan, which is being written meanwhile."""
    try:
        yield
    except (OSError, *DAMAGED) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        hint = "correct input_jsonl_fpath, or the permissions of the file"
        if isinstance(error, DAMAGED):
            hint = "the file is damaged or incomplete: copy or write it again"
        raise ConfigError(f"can't read the input {path}: {reason}", hint=hint) from error


def _check_form(first: bytes, path: Path) -> None:
    """Recognise a file that does not hold lines of JSON by its first line."""
    if first.startswith(UTF16_MARKS) or first[1:2] == b"\0":
        raise ConfigError(
            f"{path} is text in UTF-16, and a task file has to be UTF-8", hint="iconv -f UTF-16 -t UTF-8 old > new"
        )
    table = "parquet" if first.startswith(b"PAR1") else path.suffix[1:].lower()
    if table in TABLES and not first.lstrip().startswith(b"{"):
        raise ConfigError(
            f"{path} is a table ({TABLES[table]}), and a task file has one JSON object on each line",
            hint=f"in Python: pandas.read_{table}('old').to_json('new.jsonl', orient='records', lines=True)",
        )
    if first.lstrip().startswith(b"["):
        raise ConfigError(
            f"{path} is a JSON array, and a task file has one JSON object on each line",
            hint="jq -c '.[]' old.json > new.jsonl",
        )


def _fields(text: bytes, path: Path, line_number: int) -> dict[str, Any]:
    try:
        fields = decode_finite(text)
    except ValueError as error:
        raise _malformed(path, line_number, _reason(error) if text.strip() else "the line is empty") from None
    if not isinstance(fields, dict):
        raise _malformed(path, line_number, "it is not a JSON object")
    return fields


def _reason(error: ValueError) -> str:
    # Without the number of the line, which is always 1 here.
    return f"{error.msg} at character {error.pos + 1}" if isinstance(error, JSONDecodeError) else str(error)


def _malformed(path: Path, line_number: int, reason: str) -> ConfigError:
    return ConfigError(
        f"{path}: line {line_number} is not a task: {reason}",
        hint="each line has to be one JSON object; correct or delete that line",
    )


Message = dict[str, str]


class PromptConfig(BaseModel):
    """The template of a conversation: what the user says, after what the system says, if anything."""

    user: str
    system: str | None = None


class PromptError(ConfigError, ValueError):
    """A template that can't be filled, or rows that must not be filled."""


class MissingFieldError(ConfigError, KeyError):
    """A template names a field that a row does not have."""


def render(prompt: PromptConfig, row: Mapping[str, Any]) -> list[Message]:
    """The messages that the template makes of a row."""
    parts = (("system", prompt.system), ("user", prompt.user))
    return [{"role": role, "content": _fill(text, row)} for role, text in parts if text is not None]


def with_prompt(row: Mapping[str, Any], messages: Sequence[Message]) -> dict[str, Any]:
    """A copy of the row whose input is these messages; other parameters of the request are kept."""
    return {**row, RESPONSES_CREATE_PARAMS_KEY_NAME: {**Record(row).params, "input": messages}}


def has_input(row: Mapping[str, Any]) -> bool:
    """Whether the row already says what to send, which a template would overwrite."""
    return bool(Record(row).params.get("input"))


def conflict(numbers: Iterable[int]) -> PromptError:
    """The error for rows that have an input although a template is given."""
    return PromptError(
        f"rows {list(numbers)} (counted from 0) already have {RESPONSES_CREATE_PARAMS_KEY_NAME}.input, "
        "which the prompt template would replace",
        hint="remove the input from these rows, or collect without a prompt config",
    )


def _fill(template: str, row: Mapping[str, Any]) -> str:
    try:
        return template.format_map(row)
    except KeyError as error:
        raise MissingFieldError(
            f"the prompt template names the field {error.args[0]!r}, but the row has only {sorted(row)}",
            hint="correct the name in the template; braces that are meant literally are doubled: {{ }}",
        ) from None
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise PromptError(f"the prompt template {template!r} can't be filled: {error}") from error
