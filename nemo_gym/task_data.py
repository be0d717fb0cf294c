"""Front door: what the rows of an environment must contain. See ``nemo_gym.data.task_schemas``."""

from nemo_gym.data.task_schemas import (
    RESERVED_ROW_KEYS,
    TaskDataReport,
    TaskDataSchemaError,
    TaskDataValidator,
    find_server_dir,
    load_task_data_schema,
    normalize_task_fields,
    validate_jsonl_rows,
)

__all__ = [
    "RESERVED_ROW_KEYS",
    "TaskDataReport",
    "TaskDataSchemaError",
    "TaskDataValidator",
    "find_server_dir",
    "load_task_data_schema",
    "normalize_task_fields",
    "validate_jsonl_rows",
]
