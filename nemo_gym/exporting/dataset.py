"""Writes rows as JSON lines, as Parquet, or as a folder that ``datasets.load_dataset`` opens, with a card.

Everything is written beside its destination and moved there when it is complete. After an error, a full disk or a kill,
the earlier output is unchanged, and the next export removes what a killed one left.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.exporting.recipe import Recipe
from nemo_gym.exporting.sft import Row
from nemo_gym.io.files import StorageError, replacing, sync_directory
from nemo_gym.io.json import encode
from nemo_gym.io.process import is_running
from nemo_gym.rollouts.store.output import check_derived

TRAIN: Final = "train"
VALIDATION: Final = "validation"
BATCH: Final = 512  # rows that are added to a table at a time
MARK: Final = "Made with `ng_export`"


# The columns of each form, with their types.
_COLUMNS: Final = {
    "messages": "messages:messages tools:text",
    "prompt_completion": "prompt:messages completion:messages tools:text",
    "dpo": "prompt:messages chosen:messages rejected:messages tools:text",
    "kto": "prompt:messages completion:messages label:bool tools:text",
    "sharegpt": "conversations:turns system:text tools:text",
    "sft_tokens": "input_ids:ids labels:ids completion_mask:mask",
    "plain": "input_ids:ids loss_mask:mask log_probs:floats turn_starts:ids reward:float advantage:float group:text",
    "verl": "data_source:text prompt:messages ability:text reward_model:reward_model extra_info:extra_info uid:text "
    "prompts:ids responses:ids response_mask:mask rollout_log_probs:floats token_level_scores:floats advantages:floats",
    "skyrl": "prompt_token_ids:ids response_ids:ids loss_masks:mask rollout_logprobs:floats rewards:float "
    "advantages:float stop_reasons:text uid:text",
    "openrlhf": "sequences:ids attention_mask:mask action_mask:mask rollout_log_probs:floats rewards:float "
    "advantages:floats index:text",
}
_LABELS: Final = "task:int rollout:int reward:float agent:text model:text"
_PAIR_LABELS: Final = "task:int score_chosen:float score_rejected:float"


class RowSink(Protocol):
    """Receives the rows of a split."""

    def write(self, row: Row) -> int:
        """Take one row, and return its length as JSON."""

    def close(self) -> None:
        """Write what is still buffered."""

    def discard(self) -> None:
        """Let go of everything after an error; the caller removes the files."""


@dataclass
class Output:
    """The files of an export while they are being written."""

    sinks: dict[str, RowSink]
    rows: Counter[str] = field(default_factory=Counter)
    card: str = ""  # for a dataset folder

    def write(self, split: str, row: Row) -> int:
        """Add a row to a split, and return its length as JSON."""
        self.rows[split] += 1
        return self.sinks[split].write(row)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Complete the files at the end, or let go of them after an error."""
        try:
            yield
            for sink in self.sinks.values():
                sink.close()
        except BaseException:
            for sink in self.sinks.values():
                sink.discard()
            raise


def check_place(recipe: Recipe, inputs: Sequence[Path]) -> None:
    """Refuse an output that no export may replace, even with ``overwrite``."""
    for path in output_paths(recipe).values():
        if recipe.stored_as != "hf":
            check_derived(path, inputs)
        elif path.exists() and not path.is_dir():
            raise ConfigError(
                f"{path} is not a folder, but the output without .jsonl or .parquet at its end is one",
                hint="choose another +output",
            )


def refuse_overwriting(recipe: Recipe) -> None:
    """Refuse to overwrite existing files, before any input is read."""
    for path in output_paths(recipe).values():
        if not path.exists():
            continue
        if not recipe.overwrite:
            raise ConfigError(f"{path} exists", hint="choose another +output, or replace it with +overwrite=true")
        is_ours = (path / "README.md").is_file() and MARK in (path / "README.md").read_text("utf-8", "replace")
        if path.is_dir() and (recipe.stored_as != "hf" or (any(path.iterdir()) and not is_ours)):
            raise ConfigError(f"{path} is a folder that was not made by an export", hint="choose another +output")
    if recipe.stored_as != "jsonl":
        schema_of(recipe)  # raises now, and not after everything was read, if the rows can't be written as a table


def remove_drafts(recipe: Recipe) -> None:
    """Remove the drafts of processes that were killed while exporting to the same destination."""
    for path in output_paths(recipe).values():
        for draft in path.parent.glob(f"{path.name}.*.*"):
            process, ending = draft.name[len(path.name) + 1 :].split(".")[:2]
            if ending not in ("tmp", "old") or not process.isdigit() or is_running(int(process)):
                continue
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink(missing_ok=True)


def output_paths(recipe: Recipe) -> dict[str, Path]:
    """The path of each split."""
    path = Path(recipe.output)
    if recipe.stored_as == "hf":
        return {TRAIN: path}
    splits = {TRAIN: path}
    if recipe.validation:
        splits[VALIDATION] = path.with_name(f"{path.stem}_{VALIDATION}{path.suffix}")
    return splits


@contextmanager
def open_output(recipe: Recipe) -> Iterator[Output]:
    """Accept rows, and move everything into place at the end unless there was an error."""
    try:
        with _folder(recipe) if recipe.stored_as == "hf" else _files(recipe) as output:
            yield output
    except OSError as error:
        if isinstance(error, ConfigError):  # a file that was named does not exist
            raise
        raise StorageError(
            f"can't write {recipe.output}: {error.strerror or error}",
            hint="nothing was written; make room or correct the permissions, then run again",
        ) from error


@contextmanager
def _files(recipe: Recipe) -> Iterator[Output]:
    with ExitStack() as stack:
        files = {split: stack.enter_context(replacing(path)) for split, path in output_paths(recipe).items()}
        as_lines = recipe.stored_as == "jsonl"
        output = Output(
            {split: Lines(file) if as_lines else Table(file, schema_of(recipe)) for split, file in files.items()}
        )
        with output.closing():
            yield output


@contextmanager
def _folder(recipe: Recipe) -> Iterator[Output]:
    place = Path(recipe.output)
    draft, old = (place.with_name(f"{place.name}.{os.getpid()}.{ending}") for ending in ("tmp", "old"))
    try:
        (draft / "data").mkdir(parents=True)
        splits = [TRAIN, VALIDATION] if recipe.validation else [TRAIN]
        output = Output({split: ShardedTable(recipe, draft / "data", split) for split in splits})
        with output.closing():
            yield output
        (draft / "README.md").write_text(output.card, "utf-8")
        # A folder can't be replaced in one step as a file can. A kill between the two leaves the old one beside it.
        if place.exists():
            place.rename(old)
        draft.rename(place)
        sync_directory(place.parent)
    finally:
        for rest in (draft, old):
            shutil.rmtree(rest, ignore_errors=True)


@dataclass
class Lines:
    """JSON lines."""

    file: BinaryIO

    def write(self, row: Row) -> int:
        return self.file.write(encode(row) + b"\n")

    def close(self) -> None:
        """Nothing to do: the caller flushes the file."""

    def discard(self) -> None:
        """Nothing to do: the caller closes the file."""


class Table:
    """One Parquet file, written in batches."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        self._arrow, parquet = _arrow()
        self._schema = schema
        self._writer = parquet.ParquetWriter(file, schema, compression="zstd")
        self._held: list[Row] = []

    def write(self, row: Row) -> int:
        try:
            line = orjson.dumps(row)
        except TypeError:  # text that is not valid Unicode, which a table can't hold
            line = json.dumps(row, ensure_ascii=False).encode("utf-8", "replace")
            row = json.loads(line)
        self._held.append(row)
        if len(self._held) >= BATCH:
            self._flush()
        return len(line)

    def close(self) -> None:
        """Write the remaining rows and the footer."""
        self._flush()
        self._writer.close()

    def discard(self) -> None:
        """Let go of the writer."""
        self._writer.is_open = False  # or its destructor writes a footer to a file that is closed by then

    def _flush(self) -> None:
        if self._held:
            # Faster than a detour through Arrow's JSON reader. What the schema lacks would be left out without a word;
            # tests compare the rows of tables with those of JSON lines.
            self._writer.write_table(self._arrow.Table.from_pylist(self._held, schema=self._schema))
            self._held = []


class ShardedTable:
    """The Parquet files of one split."""

    def __init__(self, recipe: Recipe, folder: Path, split: str) -> None:
        self._folder, self._split, self._most = folder, split, recipe.rows_per_file
        self._schema = schema_of(recipe)
        self._shards: list[Path] = []
        self._rows = 0
        self._table: Table | None = None
        self._stack = ExitStack()

    def write(self, row: Row) -> int:
        if self._table is None:
            path = self._folder / f"{self._split}-{len(self._shards):05}.parquet"
            self._shards.append(path)
            self._table = Table(self._stack.enter_context(path.open("wb")), self._schema)
        length = self._table.write(row)
        self._rows += 1
        if self._rows % self._most == 0:
            self._finish()
        return length

    def close(self) -> None:
        """Finish the last file, then name all files with their number and total."""
        self._finish()
        for number, path in enumerate(self._shards):
            path.rename(path.with_name(f"{self._split}-{number:05}-of-{len(self._shards):05}.parquet"))

    def discard(self) -> None:
        """Close the current file as it is."""
        if self._table is not None:
            self._table.discard()
        self._stack.close()

    def _finish(self) -> None:
        if self._table is not None:
            self._table.close()
            self._stack.close()
            self._table = None


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        raise ConfigError("Parquet needs pyarrow", hint="pip install 'rollout-gym[data]', or write .jsonl") from None
    return pa, pq


def schema_of(recipe: Recipe) -> Any:
    """The columns of a table. The format fixes them, so that types never depend on the rows."""
    kind = {"sft": recipe.shape, "rl": recipe.names}.get(recipe.rows, recipe.rows)
    if kind not in _COLUMNS:
        raise ConfigError(f"{recipe.rows} has no form for tables", hint="choose an +output that ends in .jsonl")
    columns = _COLUMNS[kind].split()
    if recipe.metadata:
        named = {column.partition(":")[0] for column in columns}
        labels = _PAIR_LABELS if recipe.rows == "dpo" else _LABELS
        columns += [label for label in labels.split() if label.partition(":")[0] not in named]
    pa = _arrow()[0]
    types = _types(pa, with_reasoning=recipe.reasoning == "reasoning_content")
    return pa.schema([(name, types[kind]) for name, _, kind in (column.partition(":") for column in columns)])


def _types(pa: Any, *, with_reasoning: bool) -> dict[str, Any]:
    text, integer = pa.string(), pa.int64()
    function = pa.struct([("name", text), ("arguments", text)])
    call = pa.struct([("id", text), ("type", text), ("function", function)])
    parts = [("role", text), ("content", text), ("tool_calls", pa.list_(call)), ("tool_call_id", text)]
    return {
        "text": text,
        "int": integer,
        "float": pa.float64(),
        "bool": pa.bool_(),
        "ids": pa.list_(pa.int32()),
        "floats": pa.list_(pa.float32()),
        "mask": pa.list_(pa.int8()),
        "messages": pa.list_(pa.struct(parts + ([("reasoning_content", text)] if with_reasoning else []))),
        "turns": pa.list_(pa.struct([("from", text), ("value", text)])),
        "reward_model": pa.struct([("style", text), ("ground_truth", text)]),
        "extra_info": pa.struct([("index", integer), ("split", text)]),
    }
