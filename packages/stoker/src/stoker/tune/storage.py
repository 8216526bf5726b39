"""Where the trials of a study are kept, and which process runs each of them.

Optuna keeps them: in memory, in a journal file that several processes share, or behind a URL. This module adds what Optuna does not do
for a program that asks for its trials: a trial names its process, and a trial whose process has ended is asked again.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage
from optuna.trial import FrozenTrial, TrialState

from stoker import _disk
from stoker._text import is_url, without_credentials
from stoker.errors import OptionError
from stoker.tune.trial import ERROR, RECORD, record_of

MOST_ATTEMPTS = 3
"""A trial that has ended its process this often is failed: it may be what ends it."""
FIRST_BYTES = b'{"op_code"'
"""Every line of a journal begins with them."""


@dataclass(frozen=True)
class Ending:
    """How a trial ended."""

    state: TrialState
    value: float | None = None
    error: str | None = None


class _JournalLock(JournalFileOpenLock):
    """The lock of a journal file, by `flock`: the kernel releases it when its process is killed.

    Optuna's own locks are files, which others remove after 30 s. `acquire` also removes a line that a killed process has only half
    written; with another line after it, the journal could not be read again.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._path = path
        self._held: int | None = None

    def acquire(self) -> bool:
        """Wait for the lock."""
        self.release()
        self._held = held = _disk.disk.open_again(Path(self._path).resolve())
        fcntl.flock(held, fcntl.LOCK_EX)
        size = os.fstat(held).st_size
        if size and os.pread(held, 1, size - 1) != b"\n":
            _disk.disk.truncate(held, os.pread(held, size, 0).rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Let others write."""
        if self._held is not None:
            os.close(self._held)
            self._held = None


class StudyJournal(JournalFileBackend):
    """The journal file of a path."""

    def __init__(self, path: str) -> None:
        super().__init__(path, lock_obj=_JournalLock(path))
        self._path = path

    def __str__(self) -> str:
        return self._path


def open_storage(storage: str | Path | None) -> StudyJournal | str | None:
    """Return a journal for a path, a URL as it is, and None for memory.

    Raises:
        OptionError: The file is something else, or its folder cannot be made.
    """
    if storage is None or is_url(storage):
        return None if storage is None else str(storage)
    with _opening(storage):
        path = _disk.check_path(str(storage))
        _disk.make_folder(Path(path).parent)
        with suppress(FileNotFoundError), Path(path).open("rb") as file:
            if not FIRST_BYTES.startswith(file.read(len(FIRST_BYTES))):
                raise OptionError(
                    f"storage {path} is not a journal of Optuna. Choose another file, or give a database as a URL (sqlite:///{path}).",
                    parameter="storage",
                )
        return StudyJournal(str(path))


def open_study(
    storage: StudyJournal | str | Path | None,
    *,
    name: str,
    direction: Literal["minimize", "maximize"] | None = None,
    metric: str | None = None,
    sampler: optuna.samplers.BaseSampler | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
) -> optuna.Study:
    """Open a study of Optuna, made if it is new.

    Args:
        storage: A path, a URL, or a journal that is open; None for memory.
        name: The name of the study.
        direction: By default `"minimize"`, or that of the study.
        metric: What its scores are.
        sampler: Proposes its trials.
        pruner: Ends its trials.

    Raises:
        OptionError: The storage cannot be opened, or the study has another direction or metric.
    """
    place = storage if isinstance(storage, StudyJournal) else open_storage(storage)
    with _opening(storage):
        study = optuna.create_study(
            storage=JournalStorage(place) if isinstance(place, StudyJournal) else place,
            study_name=name,
            direction=direction or "minimize",
            load_if_exists=True,
            sampler=sampler,
            pruner=pruner,
        )
        known = {"direction": study.direction.name.lower(), "metric": study.user_attrs.get("metric", metric)}
        if metric is not None and "metric" not in study.user_attrs:
            study.set_user_attr("metric", metric)
    for option, wanted in (("metric", metric), ("direction", direction)):
        if wanted is not None and wanted != known[option]:
            raise OptionError(
                f"{option} is {wanted!r}, but the study {name!r} in {without_credentials(str(storage))} has {known[option]!r}. "
                f"Choose another name or storage for a new study.",
                parameter=option,
            )
    return study


def read_study(storage: str | Path, *, name: str | None = None) -> optuna.Study:
    """Open a study that exists.

    Raises:
        OptionError: There is no such file or study, or it has several objectives.
    """
    shown = without_credentials(str(storage))
    if not is_url(storage) and not Path(storage).is_file():
        raise OptionError(
            f"storage is {shown}, which does not exist. Give a file or URL that `search(storage=…)` wrote.", parameter="storage"
        )
    place = open_storage(storage)
    with _opening(storage):
        backend: Any = JournalStorage(place) if isinstance(place, StudyJournal) else place
        names = optuna.get_all_study_names(backend)
    if name is None and len(names) != 1:
        raise OptionError(f"{shown} holds {len(names)} studies ({', '.join(names[:9])}). Choose one: name=….", parameter="name")
    if name is not None and name not in names:
        raise OptionError(f"{shown} has no study {name!r}; it holds {', '.join(names[:9]) or 'none'}.", parameter="name")
    with _opening(storage):
        study = optuna.load_study(study_name=name or names[0], storage=backend)
        if len(study.directions) > 1:
            raise OptionError(
                f"the study {study.study_name!r} has {len(study.directions)} objectives; expected one.", parameter="name"
            )
    return study


@contextmanager
def _opening(storage: StudyJournal | str | Path | None) -> Iterator[None]:
    """Raise one error without a password, whatever a driver or a database raises."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    except OptionError:
        raise
    except Exception as error:
        reason = without_credentials((str(error).splitlines() or [type(error).__name__])[0])[:300].rstrip(".")
        raise OptionError(f"storage {without_credentials(str(storage))} cannot be opened: {reason}.", parameter="storage") from None
    finally:
        optuna.logging.set_verbosity(level)


def this_process() -> dict[str, Any]:
    """Return what names this process, so that others of the same machine can see whether it still runs."""
    host = f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    return {"host": host, "pid": os.getpid(), "start": _start_of(os.getpid())}


def _start_of(pid: int) -> str | None:
    """Return when a process began: the boot and ticks since then. None if it has ended, even if it is not yet reaped."""
    with suppress(OSError, IndexError):
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if state in ("Z", "X") else f"{boot} {others[18]}"
    return None


def has_ended(process: Mapping[str, Any]) -> bool:
    """Whether a process of this machine is gone. Of other machines this is never known."""
    is_here: bool = process.get("host") == this_process()["host"]
    return is_here and _start_of(process["pid"]) != process["start"]


class Claims:
    """The trials of a study that this process runs.

    Args:
        study: The study.
        seed: What a trial gets that has no seed of its own.
    """

    def __init__(self, study: optuna.Study, *, seed: int) -> None:
        self._study, self._seed = study, seed
        self._open: dict[int, optuna.Trial] = {}

    def take(self, space: Mapping[str, BaseDistribution] | None) -> optuna.Trial:
        """Return a trial to run: one that waits, or a new one. Without a space, the objective asks for its parameters."""
        trial = self._study.ask(None if space is None else dict(space))
        trial.set_user_attr(RECORD, {"seed": self._seed, **record_of(trial), "process": this_process()})
        self._open[trial.number] = trial
        return trial

    def finish(self, trial: optuna.Trial, ending: Ending) -> None:
        """Keep the result of a trial."""
        if ending.error is not None:
            trial.set_user_attr(ERROR, ending.error)
        self._study.tell(trial, ending.value, ending.state)
        self._open.pop(trial.number, None)

    def give_back(self, study: optuna.Study) -> None:
        """Let the trials that have not ended be run again. `study` is the study, read again after a Ctrl-C."""
        self._study = study
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number in self._open:
                self._retry(trial, record_of(trial).get("attempt", 1))
        self._open.clear()

    def retry_lost(self) -> None:
        """Let trials be run again whose process has ended, unless they have ended several."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number not in self._open and has_ended(record_of(trial).get("process", {})):
                self._retry(trial, record_of(trial).get("attempt", 1) + 1)

    def _retry(self, trial: FrozenTrial, attempt: int) -> None:
        try:
            self._study.tell(trial.number, state=TrialState.FAIL)
        except (ValueError, UpdateFinishedTrialError):
            return  # another process was first
        kept = {name: value for name, value in record_of(trial).items() if name in ("seed", "repeat_of")}
        if attempt <= MOST_ATTEMPTS:
            self._study.enqueue_trial(dict(trial.params), user_attrs={RECORD: {**kept, "attempt": attempt}})
            return
        error = f"its process ended {MOST_ATTEMPTS} times while it ran"
        failed = optuna.create_trial(
            state=TrialState.FAIL,
            params=dict(trial.params),
            distributions=dict(trial.distributions),
            user_attrs={RECORD: kept, ERROR: error},
        )
        self._study.add_trial(failed)
