"""The run folder: what a training was, and the numbers it gave.

    run.json        config, versions, machine, commit, stores: one session for each process that worked on it
    metrics.jsonl   the numbers, as they came
    checkpoints/    what the run resumes from

run.json is the marker: only a folder that has one is resumed or removed, and only a run's own files are.

The law: one process at a time, and a run that was killed and resumed has the same metrics.jsonl as one that was not, times apart.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from stoker.clock import now_utc
from stoker.errors import OptionError, StoreLocked, TrainError
from stoker.files import Lock, make_folder, remove_file, remove_folder
from stoker.train.checkpoints import is_own_name
from stoker.train.machine import find_commit, find_machine, find_versions
from stoker.train.record import NAME, Record, Session, read_record, write_record
from stoker.train.writers.jsonl import JsonLines

METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
LOCK_TRIES, LOCK_SECONDS = 10, 0.05


class Run:
    """A run that this process works on, from now until `end`. Killed before that, it is a killed run.

    Without `from_step` the run is new, and a folder that holds one is refused. With it the run goes on from a checkpoint of that
    step: numbers of later steps are cut off. `metrics` is the writer of metrics.jsonl; numbers of a step are written before
    its checkpoint, and `sync` before that is durable.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        config: Any = None,
        stores: Mapping[str, str] | None = None,
        trials: Sequence[Mapping[str, Any]] = (),
        from_step: int | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self.folder = Path(folder)
        is_new = not (self.folder / NAME).exists()
        if from_step is None and not is_new:
            check_new(self.folder)
        make_folder(self.folder)
        self._lock = _locked(self.folder)
        try:
            earlier = [] if is_new else read_record(self.folder).sessions
            session = Session(
                started=now_utc(),
                from_step=from_step or 0,
                process=os.getpid(),
                command=list(sys.orig_argv if command is None else command),
                folder=str(Path.cwd()),
                config=_plain(config),
                trials=[dict(trial) for trial in trials],
                stores=dict(stores or {}),
                versions=find_versions(),
                machine=find_machine(),
                git=find_commit(Path.cwd()),
            )
            self.record = Record(sessions=[*earlier, session])
            self.metrics = JsonLines(self.folder / METRICS, from_step=-1 if from_step is None else from_step)
            write_record(self.folder, self.record)
        except BaseException:
            self._release()
            raise

    def note_saved(self, step: int) -> None:
        """Write down that a checkpoint is on the disk, so that a resume that finds none does not begin anew."""
        last = msgspec.structs.replace(self.record.last, saved_step=step)
        self.record = Record(sessions=[*self.record.sessions[:-1], last])
        write_record(self.folder, self.record)

    def sync(self) -> None:
        """Return only when all numbers so far would survive a power loss."""
        self.metrics.sync()

    def end(self, how: str, *, step: int | None = None) -> None:
        """Say how it ended, and let others have the folder. Only the first call counts."""
        if self._lock is None:
            return
        try:
            self.metrics.close()
            last = msgspec.structs.replace(self.record.last, ended=now_utc(), how=how, last_step=step)
            self.record = Record(sessions=[*self.record.sessions[:-1], last])
            write_record(self.folder, self.record)
        finally:
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.__exit__(None, None, None)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end("finished" if kind is None else kind.__name__)


def check_new(folder: Path) -> None:
    """Refuse a folder that holds a run, or something else under a name that a run would write to."""
    if (folder / NAME).exists():
        _check_own(folder)
        raise OptionError(
            f"{folder} holds a run already. Resume it (resume=True), give another folder, or let it be replaced (overwrite=True)."
        )
    metrics, checkpoints = folder / METRICS, folder / CHECKPOINTS
    is_taken = metrics.exists() and (not metrics.is_file() or metrics.stat().st_size)
    for path in [metrics] * bool(is_taken) + [checkpoints] * (checkpoints.exists() and any(checkpoints.iterdir())):
        raise OptionError(f"{path} is there, but no {NAME} says that it is of a run of stoker. Give another folder.")


def remove_run(folder: Path) -> None:
    """Remove the run that a folder holds, if it holds one. What stoker did not write stays."""
    if not (folder / NAME).exists():
        return
    _check_own(folder)
    lock = _locked(folder)
    try:
        if (folder / CHECKPOINTS).is_dir():
            for path in (folder / CHECKPOINTS).iterdir():
                if is_own_name(path.name):
                    remove_folder(path)
            if not any((folder / CHECKPOINTS).iterdir()):
                remove_folder(folder / CHECKPOINTS)
        remove_file(folder / METRICS)
        remove_file(folder / NAME)  # last: as long as it is there, all of this is of a run
    finally:
        if lock is not None:
            lock.__exit__(None, None, None)


def _check_own(folder: Path) -> None:
    """Refuse a run.json that is not stoker's; a damaged one may be a user's file of this name."""
    try:
        read_record(folder)
    except TrainError as error:
        raise OptionError(f"{error} So it cannot be known to be of a run of stoker. Give another folder.") from error


def _locked(folder: Path) -> Lock | None:
    for tries_left in reversed(range(LOCK_TRIES)):
        try:
            return Lock(folder).__enter__()
        except StoreLocked as error:
            # Whoever lists runs looks at the lock for a moment: only one that stays is a training.
            if not tries_left:
                reason = str(error).partition(". ")[0].replace("is being written", "is being trained")
                raise TrainError(f"{reason}. Wait for it to end, or give another folder.") from None
            time.sleep(LOCK_SECONDS)
    return None


def _plain(config: Any) -> dict[str, Any]:
    """The configuration as JSON values; what JSON lacks becomes its text."""
    plain = msgspec.to_builtins({} if config is None else config, enc_hook=str, str_keys=True)
    return plain if isinstance(plain, dict) else {"config": plain}
