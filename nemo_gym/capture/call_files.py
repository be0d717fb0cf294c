"""Files of model calls, one for each rollout, that programs read while the rollout runs or after it.

``<id>.capture.jsonl`` has an exchange on each line. ``<id>.capture.incomplete`` says that something could not be
written. A line is appended whole or not at all; one that was torn by a crash is counted and left out.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator

from nemo_gym.capture.call_records import (
    PAYLOADS,
    ModelCallRecord,
    build_model_call_record,
    model_call_metrics,
)
from nemo_gym.config.keys import MODEL_CALL_CAPTURE_DIR, OBSERVABILITY_ENABLED
from nemo_gym.io.json import decode, encode_json
from nemo_gym.schemas.observations import ObservationGap
from nemo_gym.schemas.rows import ROLLOUT_ID_PATTERN

CALLS_KEY = "ng_model_call_capture"
GAP_CODE = "model_call_capture_"


class ModelCallCaptureConfig(BaseModel):
    """Whether model calls are recorded, and where."""

    model_config = ConfigDict(protected_namespaces=(), extra="ignore")

    observability_enabled: bool = False
    model_call_capture_dir: Path | None = None

    @model_validator(mode="after")
    def _has_a_place(self) -> "ModelCallCaptureConfig":
        folder = self.model_call_capture_dir
        if self.observability_enabled and (folder is None or not folder.is_absolute()):
            raise ValueError(f"{OBSERVABILITY_ENABLED} needs {MODEL_CALL_CAPTURE_DIR}, an absolute path")
        return self


class ReadExchanges(NamedTuple):
    """The exchanges that can be read, each with its line, and how many can't."""

    exchanges: list[tuple[int, dict[str, Any]]]
    unreadable: int


class CaptureStore:
    """The files below one folder."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True)

    def path_for(self, rollout_id: str) -> Path:
        return self.root / f"{_checked(rollout_id)}.capture.jsonl"

    def incomplete_path_for(self, rollout_id: str) -> Path:
        return self.root / f"{_checked(rollout_id)}.capture.incomplete"

    def mark_incomplete(self, rollout_id: str) -> None:
        self.incomplete_path_for(rollout_id).touch()

    def is_incomplete(self, rollout_id: str) -> bool:
        return self.incomplete_path_for(rollout_id).exists()

    def record(self, rollout_id: str, exchange: Mapping[str, Any]) -> None:
        """Append an exchange."""
        with self.path_for(rollout_id).open("ab", buffering=0) as file:
            file.write(encode_json(dict(exchange)) + b"\n")

    def read(self, rollout_id: str) -> list[dict[str, Any]]:
        """All exchanges of a rollout, in order; a ValueError if one can't be read."""
        found = self.read_available(rollout_id)
        if found.unreadable:
            raise ValueError(f"{self.path_for(rollout_id)}: {found.unreadable} lines are not JSON objects")
        return [exchange for _, exchange in found.exchanges]

    def read_available(self, rollout_id: str) -> ReadExchanges:
        """The exchanges that can be read."""
        path, found, unreadable = self.path_for(rollout_id), [], 0
        lines = path.read_bytes().splitlines() if path.exists() else []
        for place, line in enumerate(lines):
            try:
                exchange = decode(line)
            except ValueError:
                exchange = None
            if isinstance(exchange, dict):
                found.append((place, exchange))
            else:
                unreadable += 1
        return ReadExchanges(found, unreadable)


def _checked(rollout_id: str) -> str:
    if not ROLLOUT_ID_PATTERN.match(rollout_id):
        raise ValueError(f"{rollout_id!r} can't name a file of model calls")
    return rollout_id


# ---- what the files say ----------------------------------------------------------------------------------------------
def capture_dirs_of(config: Mapping[str, Any] | None) -> list[Path]:
    """The folders in which a configuration has model calls recorded: one, or none."""
    folder = (config or {}).get(MODEL_CALL_CAPTURE_DIR)
    return [Path(folder)] if folder and (config or {}).get(OBSERVABILITY_ENABLED) else []


def read_model_call_records(store: CaptureStore, rollout_id: str) -> list[ModelCallRecord]:
    """The calls of a rollout, as far as they can be read."""
    return [build_model_call_record(exchange, call_index=at) for at, exchange in store.read_available(rollout_id)[0]]


def aggregate_model_call_metrics(store: CaptureStore, rollout_id: str) -> dict[str, float | int | None]:
    """The sums over the calls of a rollout."""
    return model_call_metrics(read_model_call_records(store, rollout_id))


def captured_calls(
    rollout_id: str, capture_dirs: Iterable[str | Path], *, include_payloads: bool = False, attempt: str = ""
) -> dict[str, Any]:
    """What was recorded of a rollout, with the gaps. An earlier run may have had the same id: ``attempt`` tells them
    apart, as far as calls say which attempt they belong to.
    """
    calls: list[ModelCallRecord] = []
    codes: list[str] = []
    for folder in map(Path, capture_dirs):
        if not folder.is_dir():
            continue
        store = CaptureStore(folder)
        try:
            found = store.read_available(rollout_id)
        except OSError:
            codes.append("unreadable")
            continue
        codes += ["records_unreadable"] * bool(found.unreadable) + ["incomplete"] * store.is_incomplete(rollout_id)
        exchanges = [each for _, each in found.exchanges if not attempt or each.get("attempt") in (None, attempt)]
        calls += [build_model_call_record(each, call_index=len(calls) + at) for at, each in enumerate(exchanges)]
    if not calls:
        codes.append("no_records")
    left_out = None if include_payloads else set(PAYLOADS)
    captured: dict[str, Any] = {
        "rollout_id": rollout_id,
        "metrics": model_call_metrics(calls),
        "calls": [call.model_dump(mode="json", exclude=left_out) for call in calls],
    }
    if codes:
        captured["gaps"] = [ObservationGap(code=GAP_CODE + code).model_dump(exclude_none=True) for code in codes]
    return captured
