"""What the rows of an environment must contain, as its author says it in ``task_data.py`` beside ``app.py``.

That file exports ``TaskData``, a pydantic model or any type that pydantic validates, for the fields of a task without
what collectors add. Older datasets keep some fields in ``verifier_metadata`` or ``task_data``; they are looked for
there too. A field that is marked with ``legacy_location`` is still expected in that place.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from nemo_gym.config.locate import server_directory
from nemo_gym.errors import ConfigError, counted
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record, Row
from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
    TASK_SOURCE_KEY_NAME,
)
from nemo_gym.servers.loader import import_from_folder

SCHEMA_MODULE: Final = "task_data"
SCHEMA_NAME: Final = "TaskData"
CONTAINERS: Final = ("verifier_metadata", "task_data")
LEGACY_LOCATION: Final = "legacy_location"
MOST_ERRORS: Final = 5
RESERVED_ROW_KEYS: Final = frozenset(
    {
        RESPONSES_CREATE_PARAMS_KEY_NAME,
        AGENT_REF_KEY_NAME,
        TASK_SOURCE_KEY_NAME,
        TASK_INDEX_KEY_NAME,
        ROLLOUT_INDEX_KEY_NAME,
    }
)


class TaskDataSchemaError(ConfigError):
    """A ``task_data.py`` that can't be used."""


def find_server_dir(name: str, base_folder: str = "resources_servers") -> Path:
    """The folder of a server, here or in the installation."""
    return server_directory(base_folder, name)


def load_task_data_schema(server_dir: Path) -> TypeAdapter[Any] | None:
    """What the folder's ``TaskData`` validates; None if the folder has no such file."""
    path = Path(server_dir) / f"{SCHEMA_MODULE}.py"
    if not path.is_file():
        return None
    try:
        module = import_from_folder(path.parent.absolute(), SCHEMA_MODULE)
    except Exception as error:
        raise TaskDataSchemaError(
            f"{path} can't be imported: {type(error).__name__}: {error}",
            hint="it may import only the standard library, pydantic and other task_data modules",
        ) from error
    kind = getattr(module, SCHEMA_NAME, None)
    if kind is None:
        raise TaskDataSchemaError(f"{path} has no {SCHEMA_NAME}", hint="define it: a pydantic model of a task's fields")
    try:
        return TypeAdapter(kind)
    except (PydanticUserError, TypeError) as error:
        raise TaskDataSchemaError(f"{path}: {SCHEMA_NAME} is not a type that pydantic validates ({error})") from error


def normalize_task_fields(row: Mapping[str, Any]) -> tuple[Row, list[str]]:
    """The fields of a task at one level, and the keys that have another value inside a container than outside."""
    fields = {name: value for name, value in row.items() if name not in RESERVED_ROW_KEYS}
    conflicts = []
    for container in CONTAINERS:
        inner = fields.get(container)
        if not isinstance(inner, Mapping):
            continue
        del fields[container]
        for name, value in inner.items():
            if name in fields and fields[name] != value:
                conflicts.append(name)
            fields.setdefault(name, value)
    return fields, conflicts


@dataclass(slots=True)
class TaskDataReport:
    """What was found in the rows of a dataset."""

    server_name: str
    dataset_fpath: str
    rows: int = 0
    error_rows: int = 0
    errors: list[str] = field(default_factory=list)
    unknown_keys: Counter[str] = field(default_factory=Counter)
    conflicting_keys: Counter[str] = field(default_factory=Counter)
    misplaced_keys: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.error_rows or self.unknown_keys or self.conflicting_keys or self.misplaced_keys)

    def summary(self) -> str:
        """What is wrong, in a few lines."""
        lines = [f"{self.dataset_fpath}: {counted(self.rows, 'row')} for {self.server_name}"]
        if self.error_rows:
            lines += [f"  {counted(self.error_rows, 'row')} without valid task data, for example:"]
            lines += [f"    {error}" for error in self.errors]
        keys = {
            "not in TaskData": self.unknown_keys,
            "with two values": self.conflicting_keys,
            "not where servers look for them": self.misplaced_keys,
        }
        for what, found in keys.items():
            if found:
                lines.append(f"  keys {what}: " + ", ".join(f"{name} ({n} rows)" for name, n in found.most_common()))
        return "\n".join(lines if not self.clean else [f"{lines[0]}: all valid"])


class TaskDataValidator:
    """Checks rows one by one and reports on all of them."""

    def __init__(self, server_name: str, adapter: TypeAdapter[Any], dataset_fpath: str | Path) -> None:
        self.report = TaskDataReport(server_name, str(dataset_fpath))
        self._adapter = adapter
        schema = adapter.json_schema()
        if "$ref" in schema:
            schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
        self._fields: Mapping[str, Any] | None = schema.get("properties")

    def validate_row(self, index: int, row: Mapping[str, Any]) -> bool:
        """Check a row; False if it is not valid."""
        report = self.report
        report.rows += 1
        fields, conflicts = normalize_task_fields(row)
        report.conflicting_keys.update(conflicts)
        if self._fields is not None:
            report.unknown_keys.update(set(fields) - set(self._fields))
            report.misplaced_keys.update(name for name in self._fields if self._is_misplaced(name, row))
        try:
            self._adapter.validate_python(fields)
        except ValidationError as error:
            report.error_rows += 1
            if len(report.errors) < MOST_ERRORS:
                first = error.errors(include_url=False, include_input=False)[0]
                report.errors.append(f"row {index}: {'.'.join(map(str, first['loc'])) or SCHEMA_NAME}: {first['msg']}")
            return False
        return True

    def _is_misplaced(self, name: str, row: Mapping[str, Any]) -> bool:
        """Whether a key is only at the top level, although its servers look for it in a container."""
        assert self._fields is not None
        place = self._fields[name].get(LEGACY_LOCATION)
        container = row.get(str(place)) if place else None
        return place is not None and name in row and not (isinstance(container, Mapping) and name in container)


def validate_jsonl_rows(
    server_name: str, adapter: TypeAdapter[Any], dataset_fpath: str | Path, lines: Iterable[str | bytes]
) -> TaskDataReport:
    """Check the lines of a dataset; one that is not an object is an invalid row."""
    validator = TaskDataValidator(server_name, adapter, dataset_fpath)
    for index, line in enumerate(lines):
        try:
            row = Record.parse(line).fields
        except RolloutFormatError as error:
            validator.report.rows += 1
            validator.report.error_rows += 1
            validator.report.errors = [*validator.report.errors, f"row {index}: {error}"][:MOST_ERRORS]
            continue
        validator.validate_row(index, row)
    return validator.report
