"""The store: the files of a run, and the only way to write them.

Invariants, whatever happens to the process:

- Every line that readers see is whole: what a crash tore off is set aside before the next line is written.
- A rollout is in the main file at most once. What is in no file is owed again.
- A failure is recorded, and never in the main file.
- The steps of an attempt are written before its outcome; those without one are set aside when a run is resumed.
- A plan takes its place only when it is complete and approved; a fresh run moves what it replaces aside.
- One process writes at a time.

``open_plan`` decides how a run begins: from scratch, where an earlier one stopped, or with an extended plan.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import RunFiles, replacing, storage_errors
from nemo_gym.rollouts.store.history import (
    AttemptPolicy,
    History,
    packed,
    read_attempts,
    read_completed,
    read_failures,
    unplanned,
)
from nemo_gym.rollouts.store.journal import Journal, Write, exclusive
from nemo_gym.rollouts.store.outcome import Completed, Failed, Outcome
from nemo_gym.rollouts.store.output import Manifest, Request, check_output, is_taken, move_to_backup, output_taken
from nemo_gym.rollouts.store.plan_file import PlanOnDisk, PlanWriter, read_owed, write_extended, write_plan
from nemo_gym.rollouts.store.saved_lines import key_in_line, read_lines, set_aside
from nemo_gym.schemas.record import Row
from nemo_gym.schemas.rows import MODEL_CHANGES_KEY_NAME

logger = logging.getLogger(__name__)


Approve: TypeAlias = Callable[[PlanOnDisk], None]  # raises if the run must not begin


class RolloutStore:
    """The files of one run, open for writing."""

    def __init__(self, files: RunFiles, *, write: Write = os.write) -> None:
        self.files = files
        self._write = write
        self._stack = ExitStack()
        self._rollouts: Journal | None = None
        self._failures: Journal | None = None
        self._steps: Journal | None = None

    @property
    def can_resume(self) -> bool:
        """Whether an earlier run left enough to continue from."""
        return self.files.plan.exists() and self.files.rollouts.exists()

    # ---- ways to begin ----------------------------------------------------------------------------------------------
    def start(self, rows: Iterable[Row], request: Request, policy: AttemptPolicy, approve: Approve) -> PlanOnDisk:
        """Begin from scratch: write the plan, move an earlier run aside. Nothing is touched without approval."""
        with storage_errors(self.files.plan, "write"), replacing(self.files.plan) as file:
            writer = PlanWriter(file)
            plan = write_plan(self.files.plan, writer, rows, policy)
            approve(plan)
            # While the new plan is still a draft: an error here leaves the earlier run as it was.
            move_to_backup(self.files)
        self._write_manifest(request.manifest(writer.facts, self.files.rollouts))
        self._open()
        return plan

    def count_owed(self, policy: AttemptPolicy) -> int:
        """How many rollouts of the plan on disk a resumed run would still have to run. Nothing is written."""
        history = History()
        read_completed(self.files.rollouts, history)
        if self.files.failures.exists():
            read_failures(self.files.failures, history)
        return len(read_owed(self.files.plan, history, policy))

    def resume(self, policy: AttemptPolicy, approve: Approve) -> PlanOnDisk:
        """Continue with the plan on disk."""
        history = self._read_history()
        plan = read_owed(self.files.plan, history, policy)
        approve(plan)
        return self._continue(plan, history)

    def extend(self, rows: Iterable[Row], request: Request, policy: AttemptPolicy, approve: Approve) -> PlanOnDisk:
        """Continue with a new plan that agrees with the old one where they overlap, and keep what is collected."""
        history = self._read_history()
        with storage_errors(self.files.plan, "write"), replacing(self.files.plan) as file:
            writer = PlanWriter(file)
            write_extended(self.files.plan, writer, rows, history)
            file.flush()
            # Approved before it takes its place: a plan that is refused must leave the old one as it was.
            plan = replace(read_owed(Path(file.name), history, policy), path=self.files.plan)
            approve(plan)
        self._write_manifest(request.manifest(writer.facts, self.files.rollouts))
        return self._continue(plan, history)

    def note_models(self, request: Request) -> None:
        """Write down the models of a run that is resumed before anything was collected, with whatever models."""
        manifest = Manifest.read(self.files.manifest) if request.models and not is_taken(self.files) else None
        if manifest is not None and manifest.models not in (None, request.models):
            self._write_manifest(replace(manifest, models=request.models))

    # ---- writing ----------------------------------------------------------------------------------------------------
    def append(self, outcomes: Iterable[Outcome]) -> None:
        """Save outcomes, each where it belongs. Once this returns they survive the death of the process."""
        assert self._rollouts is not None
        assert self._failures is not None
        completed: list[bytes] = []
        failed: list[bytes] = []
        steps: list[bytes] = []
        for outcome in outcomes:
            if isinstance(outcome, Completed):
                completed.append(outcome.line)
            elif isinstance(outcome, Failed):
                failed.append(outcome.line)
            else:
                continue
            if outcome.steps:
                steps.append(outcome.steps)
        # Steps first: a crash in between leaves steps without an outcome, which the next run sets aside. The other way
        # round, a saved rollout would lack its steps for good.
        if steps:
            self._append_steps(steps)
        self._failures.append(failed)
        self._rollouts.append(completed)

    def _append_steps(self, lines: list[bytes]) -> None:
        if self._steps is None:  # opened only when there are any, because steps may be turned off
            self._steps = self._stack.enter_context(self._journal(self.files.steps))
        self._steps.append(lines)

    def sync(self) -> None:
        """Force everything to the disk; may run in another thread."""
        for journal in (self._steps, self._failures, self._rollouts):
            if journal is not None:
                journal.sync()

    def close(self) -> None:
        """Close the files; called by the code that opened the store."""
        self._stack.close()

    # ---- the past ---------------------------------------------------------------------------------------------------
    def _read_history(self) -> History:
        """Read what earlier runs left, and set aside what can't be read."""
        history = History()
        set_aside(self.files.rollouts, read_completed(self.files.rollouts, history))
        if self.files.failures.exists():
            set_aside(self.files.failures, read_failures(self.files.failures, history))
        if self.files.steps.exists():
            set_aside(self.files.steps, read_attempts(self.files.steps, history))
        return history

    def _continue(self, plan: PlanOnDisk, history: History) -> PlanOnDisk:
        # Rollouts that the plan does not have were made by another plan, and would be counted in the metrics.
        if plan.done < len(history.done):
            planned = {packed(key) for line in read_lines(self.files.plan) if (key := key_in_line(line.text))}
            set_aside(self.files.rollouts, list(unplanned(self.files.rollouts, planned)))
        self._open()
        return plan

    def _write_manifest(self, manifest: Manifest) -> None:
        with storage_errors(self.files.manifest, "write"):
            manifest.write(self.files.manifest)

    def _open(self) -> None:
        self._rollouts = self._stack.enter_context(self._journal(self.files.rollouts))
        self._failures = self._stack.enter_context(self._journal(self.files.failures))

    def _journal(self, path: Path) -> Journal:
        return Journal(path, write=self._write)


@contextmanager
def open_store(output: Path, *, task_file: Path | None = None, write: Write = os.write) -> Iterator[RolloutStore]:
    """Open the store of an output path, and lock it until it is closed."""
    files = RunFiles.of(output)
    check_output(files, task_file)
    with storage_errors(files.rollouts.parent, "create"):
        files.rollouts.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(files.lock, output=output):
        store = RolloutStore(files, write=write)
        try:
            yield store
        finally:
            store.close()


class ResumeMode(StrEnum):
    """What to do if the settings of a resumed run differ from those of the run before it."""

    STRICT = "strict"  # refuse, and say what differs
    EXTEND = "extend"  # plan again, run what is new, keep what is collected
    FORCE = "force"  # continue the old plan, whatever the settings


class PlanChangedError(ConfigError):
    """A run can't be resumed because its settings differ."""


def open_plan(
    store: RolloutStore,
    rows: Callable[[], Iterable[Row]],
    request: Request,
    *,
    resume: bool = False,
    overwrite: bool = True,
    mode: ResumeMode = ResumeMode.STRICT,
    policy: AttemptPolicy,
    approve: Approve = lambda plan: None,  # noqa: ARG005 - nothing to object to
) -> PlanOnDisk:
    """Prepare the files and find out what is owed. ``rows`` makes the plan and is called only if one is needed.

    A fresh run moves an earlier one aside. Without ``overwrite`` it is refused if the earlier one has the same plan and
    is unfinished, because then a resume was probably forgotten, or if the output does not hold a run. ``mode`` says
    what happens if ``request`` differs. ``approve`` may raise before anything is replaced.
    """
    if not resume or not store.can_resume:
        if resume:
            missing = [path.name for path in (store.files.plan, store.files.rollouts) if not path.exists()]
            logger.info("Nothing to resume (%s does not exist): starting from scratch", " and ".join(missing))

        def approve_fresh(plan: PlanOnDisk) -> None:
            approve(plan)  # what is wrong with the input comes first
            is_other = store.can_resume and (_changes(store, request) or _model_changes(store, request))
            if is_taken(store.files) and not overwrite and not is_other:
                _check_finished(store, policy)

        return store.start(rows(), request, policy, approve_fresh)
    return _continued(store, rows, request, mode=mode, policy=policy, approve=approve)


def _continued(
    store: RolloutStore,
    rows: Callable[[], Iterable[Row]],
    request: Request,
    *,
    mode: ResumeMode,
    policy: AttemptPolicy,
    approve: Approve,
) -> PlanOnDisk:
    """The plan of a run that goes on where an earlier one stopped."""
    changes, model_changes = _changes(store, request), _model_changes(store, request)
    if mode is ResumeMode.STRICT and (changes or model_changes):
        raise _changed(changes, model_changes)
    if model_changes:
        logger.warning("The models are not those of the earlier run; new rows say so in %s", MODEL_CHANGES_KEY_NAME)
    if mode is ResumeMode.EXTEND:
        plan = store.extend(rows(), _with_first_models(store, request), policy, approve)
    else:
        plan = store.resume(policy, approve)
        store.note_models(request)
    return replace(plan, model_changes=model_changes)


def _changed(changes: list[str], model_changes: list[str]) -> PlanChangedError:
    what = "with another plan" if changes else "with other settings of a model"
    force = "finish the old plan" + (
        f", with rows that say what differs ({MODEL_CHANGES_KEY_NAME})" * bool(model_changes)
    )
    return PlanChangedError(
        f"this output was collected {what}:\n" + "\n".join(f"  {change}" for change in (*changes, *model_changes)),
        hint="resume with the old settings; or +resume_mode=extend to run only what is new; or "
        f"+resume_mode=force to {force}; or another output_jsonl_fpath",
    )


def _check_finished(store: RolloutStore, policy: AttemptPolicy) -> None:
    """Refuse an output that holds an unfinished run, or anything that is not known to be a run."""
    left = store.count_owed(policy) if store.can_resume else 0
    if left or not store.can_resume:
        raise output_taken(store.files, left=left)


def _model_changes(store: RolloutStore, request: Request) -> list[str]:
    """How the models differ from those of what has been collected, if anything has and it is known."""
    earlier = Manifest.read(store.files.manifest) if is_taken(store.files) else None
    return list(request.model_differences(earlier)) if earlier is not None else []


def _with_first_models(store: RolloutStore, request: Request) -> Request:
    """The request, with the models of what has been collected: later rows are compared with these."""
    earlier = Manifest.read(store.files.manifest) if is_taken(store.files) else None
    return replace(request, models=earlier.models) if earlier is not None and earlier.models else request


def _changes(store: RolloutStore, request: Request) -> list[str]:
    """What differs from the run before. Without a manifest nothing is known, and the plan on disk is used."""
    earlier = Manifest.read(store.files.manifest)
    if earlier is None:
        return []
    changes = list(request.differences(earlier))
    if store.files.plan.stat().st_size != earlier.plan.bytes:
        changes.append(f"{store.files.plan.name}: the file is not as it was written")
    return changes
