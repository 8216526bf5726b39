"""The folder of a run, and the table of many.

    Run         run.json, metrics.jsonl and slowdowns.jsonl of a run in progress
    collect     the runs of a folder, each summed up in one line; table shows them

run.json has one session per process that worked on the run: config, versions, machine, commit, stores.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta

from stoker._clock import now_utc
from stoker._disk import Lock, LogFile, is_locked, make_folder, remove_file, remove_folder, write_file
from stoker._text import printable, readable_seconds, without_credentials
from stoker.errors import OptionError, StoreLockedError, TrainError
from stoker.train.early_stopping import guess_mode
from stoker.train.loggers import JsonLines, Lines, read_lines
from stoker.watch.cause import Slowdown

if TYPE_CHECKING:
    from rich.table import Table

    from stoker.train.autotune import Setup

GIT_SECONDS = 10
NVIDIA = Path("/proc/driver/nvidia")


class Computer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The computer of a run."""

    host: str
    system: str
    cpu: str
    cores: int
    """That this process may use."""
    memory_bytes: int
    gpus: list[str]
    driver: str | None


class Commit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of the user's code."""

    commit: str
    dirty: bool
    """Whether files that git knows differ from the commit."""


def find_machine() -> Computer:
    """This computer."""
    import psutil

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    else:  # to ask torch would open every GPU, which a run on the CPU has no use for
        models = [_line_of(path, r"^Model:\s*(.+)$") for path in sorted((NVIDIA / "gpus").glob("*/information"))]
        gpus = [model for model in models if model is not None]
    return Computer(
        host=platform.node(),
        system=platform.platform(),
        cpu=_line_of(Path("/proc/cpuinfo"), r"^model name\s*:\s*(.+)$") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=int(psutil.virtual_memory().total),
        gpus=gpus,
        driver=_line_of(NVIDIA / "version", r"Kernel Module(?: for \S+)?\s+(\S+)"),
    )


def _line_of(path: Path, pattern: str) -> str | None:
    """What the first match of a pattern has in its brackets; None where there is none, or no such file."""
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return match[1] if match else None


def find_versions() -> dict[str, str]:
    """What computes: stoker, Python and the packages whose arithmetic a run consists of."""
    import numpy as np
    import torch

    import stoker

    versions = {"stoker": stoker.__version__, "python": platform.python_version(), "numpy": np.__version__}
    return versions | {"torch": str(torch.__version__)} | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def find_launch() -> str | None:
    """The id of the `torchrun` that started this process; None where none did."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


def is_restart(folder: Path) -> bool:
    """Whether `torchrun` has started this process to continue the run of a folder, after a failure or with other nodes.

    It counts restarts after failures, but not those after a node has joined or left, and a new node has no count. So the id of the
    launch is compared too; "none" is what it is where the user gave none.
    """
    launch = find_launch()
    if launch is None or not (folder / NAME).exists():
        return False
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0"):
        return True
    last = read_record(folder).last
    return launch != "none" and last.launch == launch and last.how not in ("finished", "early")


def find_commit(folder: Path) -> Commit | None:
    """The commit of the git repository that holds a folder; None where there is none, or no git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return Commit(commit=commit, dirty=changes is None or bool(changes))


def _git(folder: Path, *arguments: str) -> str | None:
    # Neither a lock in somebody's repository, nor a program that its settings name.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=GIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# run.json: what a run is, so that it can be run again. Parsed strictly, replaced whole.
#
# A record has one session for each process that worked on the run: the one that started it, and those that resumed it. A session
# without an end was killed, or is still running.

NAME = "run.json"
VERSION = 1
MAX_BYTES = 64 << 20


Step = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class RunSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process that worked on a run."""

    started: str
    """UTC, like 2026-11-15T16:20:00.123Z."""
    from_step: Step
    ended: str | None = None
    how: str | None = None
    """"finished", "early", "budget", "signal", "callback", or the error that ended it."""
    last_step: Step | None = None
    saved_step: Step | None = None
    """The step of a checkpoint that it has written; of the first one, as long as the session lasts."""
    process: int
    launch: str | None = None
    """The id of the `torchrun` that started it."""
    command: list[str]
    folder: str
    """Where the command was given."""
    config: dict[str, Any]
    """The effective configuration, with the setup of the run: what a resumed run takes it from."""
    trials: list[dict[str, Any]] = []
    """What was measured to choose the setup, with its intervals."""
    stores: dict[str, str]
    """The digest of each store that was fed, by its use or name."""
    versions: dict[str, str]
    machine: Computer
    git: Commit | None


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All sessions of a run, the first one first."""

    format: Literal["stoker-run"] = "stoker-run"
    version: Literal[1] = 1
    sessions: Annotated[list[RunSession], Meta(min_length=1)]

    @property
    def last(self) -> RunSession:
        """The session that worked on the run last."""
        return self.sessions[-1]


def step_reached(record: Record) -> int:
    """The last step that the run is known to have reached. A checkpoint of it may be missing: none could be written, or it was removed."""
    return max(max(session.from_step, session.last_step or 0, session.saved_step or 0) for session in record.sessions)


class _Head(msgspec.Struct):
    format: str
    version: int


def read_record(folder: Path) -> Record:
    """Read the run.json of a folder; one that breaks a rule raises a `TrainError` that says which."""
    path = folder / NAME
    try:
        if path.exists() and not path.is_file():
            raise TrainError(f"{path} is not a plain file.")
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise TrainError(f"{path} has more than {MAX_BYTES:,} bytes, which no run needs.")
        head = msgspec.json.decode(text, type=_Head)
        if head.format == "stoker-run" and head.version > VERSION:
            raise TrainError(f"{path} has version {head.version}, and this stoker reads up to {VERSION}. Use a newer stoker.")
        record = msgspec.json.decode(text, type=Record)
    except FileNotFoundError:
        raise TrainError(f"{folder} holds no {NAME}, so it is not a run. Give the folder of a run.") from None
    except OSError as error:
        raise TrainError(f"{path} cannot be read ({error.strerror}).") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TrainError(f"{path} is damaged: {error}.") from error
    return record


def recorded_setup(folder: Path) -> Setup:
    """The setup that a run is computed in, as its last session recorded it before its first step."""
    from stoker.train.autotune import parse_setup  # imports torch, which `stoker runs` has no use for

    config = read_record(folder).last.config
    if "setup" not in config:
        raise TrainError(f"{folder / NAME} has no setup, so none can be taken from it. Give the folder of a run of stoker.Trainer.")
    return parse_setup(config["setup"], where=str(folder / NAME))


def write_record(folder: Path, record: Record) -> None:
    """Replace the run.json of a folder in one step."""
    write_file(folder / NAME, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


# The run folder: the config and metrics of a run.
#
#     run.json        config, versions, machine, commit, stores: one session for each process that worked on it
#     metrics.jsonl   the numbers, as they came
#     checkpoints/    what the run resumes from
#
# run.json is the marker: only a folder that has one is resumed or removed, and only a run's own files are.
#
# Guarantee: one process at a time, and a run that was killed and resumed has the same metrics.jsonl as one that was not, times
# apart.

METRICS = "metrics.jsonl"
SLOWDOWNS = "slowdowns.jsonl"
SCALER = "scaler.safetensors"
FEED = "feed.json"
CHECKPOINTS = "checkpoints"
LOCK_TRIES, LOCK_SECONDS = 10, 0.05
LAUNCHED_LOCK_TRIES = 600
"""With `torchrun`: the process before a restart may still be ending, on another machine."""


class Run:
    """A run that this process works on, from now until `end`. Killed before that, it is a killed run.

    Without `from_step` the run is new, and a folder that holds one is refused. With it the run continues from a checkpoint of that
    step: numbers of later steps are cut off. `metrics` is the writer of metrics.jsonl; numbers of a step are written before
    its checkpoint.
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
        self._lock: Lock | None = _locked(self.folder)
        try:
            earlier = [] if is_new else read_record(self.folder).sessions
            plain = msgspec.to_builtins({} if config is None else config, enc_hook=str, str_keys=True)  # what JSON lacks is text
            session = RunSession(
                started=now_utc(),
                from_step=from_step or 0,
                process=os.getpid(),
                launch=find_launch(),
                command=[without_credentials(word) for word in (sys.orig_argv if command is None else command)],
                folder=str(Path.cwd()),
                config=plain if isinstance(plain, dict) else {"config": plain},
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
        """Write down that a checkpoint is on the disk, so that a resume that finds none does not begin again."""
        self._change(saved_step=step)

    def note_slowdown(self, slowdown: Slowdown) -> None:
        """Add a line to slowdowns.jsonl."""
        with contextlib.closing(LogFile(self.folder / SLOWDOWNS)) as log:
            log.append(msgspec.json.encode({**slowdown.as_dict(), "time": now_utc()}) + b"\n")

    def _change(self, **values: Any) -> None:
        last = msgspec.structs.replace(self.record.last, **values)
        self.record = Record(sessions=[*self.record.sessions[:-1], last])
        write_record(self.folder, self.record)

    def end(self, how: str, *, step: int | None = None) -> None:
        """Say how it ended, and let others have the folder. Only the first call counts."""
        if self._lock is None:
            return
        try:
            self.metrics.close()
            self._change(ended=now_utc(), how=how, last_step=step)
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


START_FILES = ("config.yaml", "inputs.json", "recipe.json", FEED, SCALER, METRICS, CHECKPOINTS, NAME)
"""What the start of a run writes, in any order. A start that failed or was killed may leave some of it, and the next start replaces it."""


NOTES = (".md", ".txt", ".log", ".out", ".err")
"""Endings of files that may be in the folder of a new run, as `stoker train c.yaml > runs/c/train.log` makes one before the run begins."""


def check_new(folder: Path) -> None:
    """Refuse what is not a new folder, an empty one but for notes, or one that a start of a run has left before its run.json."""
    if (folder / NAME).exists():
        check_own(folder)
        raise OptionError(
            f"{folder} holds a run already. Resume it (resume=True), give another folder, or let it be replaced (overwrite=True).",
            parameter="folder",
            path=folder,
        )
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise OptionError(f"folder is {folder}, which is not a folder. Give another one.", parameter="folder", path=folder)
    is_claimed = (folder / "recipe.json").is_file()  # by a recipe, which keeps further files there
    for path in sorted(folder.iterdir()):
        name = path.name.removesuffix(".tmp")
        is_start = name == ".lock" or (name in START_FILES and not _holds_results(path))
        if not (is_start or is_claimed or _is_note(path)) or (is_claimed and _holds_results(path)):
            raise OptionError(
                f"{path} is there, but no {NAME} says that it is of a run of stoker. Give a new folder, one with logs and notes alone, or "
                "that of a run.",
                parameter="folder",
                path=folder,
            )


def _is_note(path: Path) -> bool:
    """Whether a file is one that people and tools put beside a run, such as a log or notes.md. A run writes no file of such a name."""
    return (path.suffix in NOTES or path.name.startswith(".")) and path.is_file() and not path.is_symlink()


def _holds_results(path: Path) -> bool:
    """Whether a file or folder of a run holds what only training writes, or what no start of a run writes."""
    if path.name == CHECKPOINTS:
        return not path.is_dir() or any(path.iterdir())
    if path.name == FEED and path.is_file():
        with contextlib.suppress(ValueError, RecursionError):
            settings = json.loads(path.read_bytes())
            return not (isinstance(settings, dict) and "view" in settings)
        return True
    return not path.is_file() or (path.name == METRICS and path.stat().st_size > 0) if path.name in START_FILES else False


def remove_run(folder: Path) -> None:
    """Remove the run that a folder holds, if it holds one. What stoker did not write stays.

    Args:
        folder: The folder of the run.

    Raises:
        OptionError: The folder has a run.json that is not stoker's.
        TrainError: Another process works on the run.

    Example:
        >>> from pathlib import Path
        >>> remove_run(Path("runs/there-is-none"))
    """
    if not (folder / NAME).exists():
        return
    from stoker.train.checkpoint import is_own_name  # imports torch, which `stoker runs` and `stoker live` do without

    check_own(folder)
    lock = _locked(folder)
    try:
        if (folder / CHECKPOINTS).is_dir():
            for path in (folder / CHECKPOINTS).iterdir():
                if is_own_name(path.name):
                    remove_folder(path)
            if not any((folder / CHECKPOINTS).iterdir()):
                remove_folder(folder / CHECKPOINTS)
        for name in (METRICS, SLOWDOWNS, SCALER, FEED, NAME):  # run.json last: as long as it is there, all of this is of a run
            remove_file(folder / name)
    finally:
        lock.__exit__(None, None, None)


def read_slowdowns(folder: Path) -> list[Slowdown]:
    """The slowdowns of a run, also of one in progress; lines that cannot be read are left out."""
    path = folder / SLOWDOWNS
    slowdowns = []
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            slowdowns += [msgspec.json.decode(line, type=Slowdown)] if line.endswith(b"\n") else []
    return slowdowns


def keep_feed(folder: Path, batches: object) -> None:
    """Write what makes a feed like that of the run over other data: feed.json, and the scaler. Remove those of earlier batches."""
    scaler: Any = getattr(batches, "scaler", None)
    settings: Any = getattr(batches, "settings", None)
    contents = {
        SCALER: scaler.to_bytes() if hasattr(scaler, "to_bytes") else None,
        FEED: msgspec.json.format(msgspec.json.encode(settings()), indent=1) + b"\n" if callable(settings) else None,
    }
    for name, data in contents.items():
        if data is not None:
            write_file(folder / name, data)
        elif (folder / name).exists():
            remove_file(folder / name)


def check_own(folder: Path) -> None:
    """Refuse a run.json that is not stoker's; a damaged one may be a user's file of this name."""
    try:
        read_record(folder)
    except TrainError as error:
        raise OptionError(
            f"{error} So it cannot be known to be of a run of stoker. Give another folder.", parameter="folder"
        ) from error


def _locked(folder: Path) -> Lock:
    for _ in range(LOCK_TRIES if find_launch() is None else LAUNCHED_LOCK_TRIES):
        try:
            return Lock(folder).__enter__()
        except StoreLockedError as error:
            # Listing runs takes the lock for a moment: only one that stays is a run in progress.
            reason = str(error).partition(". ")[0].replace("is being written", "is being trained")
            time.sleep(LOCK_SECONDS)
    raise TrainError(f"{reason}. Wait for it to end, or give another folder.")


# Runs: their folders, each summed up in one line of a table. A damaged one is listed with the reason.

State = Literal["running", "finished", "stopped", "killed", "damaged"]

LOSS, RATE, WAIT = "loss", "rate", "wait"
"""Names under which a trainer writes the training loss, updates per second, and the share of time spent waiting for data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """One run in short; None is what is not known."""

    path: Path
    name: str
    """The path within the folder that was searched."""
    state: State
    how: str | None = None
    """What its last session says of its end."""
    started: str | None = None
    seconds: float | None = None
    """Time that all its sessions worked on it."""
    step: int | None = None
    metric: str | None = None
    best: float | None = None
    best_step: int | None = None
    loss: float | None = None
    """The last one of the training."""
    rate: float | None = None
    """Updates per second: the median of what was written."""
    wait: float | None = None
    """The mean share of time spent waiting for data."""
    reason: str | None = None
    """What is damaged."""


def collect(folder: str | Path, *, metric: str | None = None) -> list[RunSummary]:
    """All runs in a folder (or the one that it is), the earliest first, damaged ones without a start last.

    `best` is that of `metric`; without one, of `val_loss`, another metric of validation, or the training's loss.
    """
    runs = [_summary(path, name, metric) for path, name in find_runs(Path(folder)).items()]
    return sorted(runs, key=lambda run: (run.started is None, run.started or "", run.name))


def find_runs(folder: Path) -> dict[Path, str]:
    """The folders of all runs in a folder (or the one that it is), each with its path within that folder."""
    if not folder.is_dir():
        raise OptionError(f"{folder} is not a folder. Give a run, or a folder of runs.", path=folder)
    runs = {}
    for place, folders, files in os.walk(folder):
        path = Path(place)
        if NAME in files or METRICS in files:
            runs[path] = path.name if path == folder else str(path.relative_to(folder))
            folders.clear()  # a run holds no runs
        folders[:] = sorted(name for name in folders if not name.startswith("."))
    return runs


def _summary(path: Path, name: str, metric: str | None) -> RunSummary:
    try:
        is_running = is_locked(path)  # read first: a run that ends meanwhile has its end in what is read next
        lines, record = read_lines(path / METRICS), read_record(path)
        how, step = record.last.how, record.last.last_step
        best_name, best, best_step = _best(lines, metric)
        losses, rates, waits = (lines.curves.get(name, ([], []))[1] for name in (LOSS, RATE, WAIT))
        rates, waits = ([value for value in values if math.isfinite(value)] for values in (rates, waits))
        return RunSummary(
            path=path,
            name=name,
            state=state_of(record, is_running=is_running),
            how=how,
            started=record.sessions[0].started,
            seconds=_seconds(record, lines, is_running=is_running),
            step=step if step is not None else lines.last_step,
            metric=best_name,
            best=best,
            best_step=best_step,
            loss=losses[-1] if losses else None,
            rate=statistics.median_high(rates) if rates else None,
            wait=statistics.fmean(waits) if waits else None,
            reason=f"{lines.damaged:,} lines of {METRICS} cannot be read" if lines.damaged else None,
        )
    except Exception as error:  # whatever a file holds: one run that cannot be read must not hide the others
        reason = str(error) if isinstance(error, TrainError | OSError) else f"{type(error).__name__}: {error}"
        return RunSummary(path=path, name=name, state="damaged", reason=_short(reason))


def state_of(record: Record, *, is_running: bool) -> State:
    """How a run stands: as the process that holds its lock, and its last session say."""
    how = record.last.how
    return "running" if is_running else "killed" if how is None else "finished" if how in ("finished", "early") else "stopped"


def _seconds(record: Record, lines: Lines, *, is_running: bool) -> float:
    """A session that was killed worked until its last line, as far as is known."""
    total = 0.0
    for session in record.sessions:
        ended = session.ended
        if ended is None and session is record.last:
            ended = now_utc() if is_running else lines.last_time
        if ended is not None:
            total += max(0.0, (datetime.fromisoformat(ended) - datetime.fromisoformat(session.started)).total_seconds())
    return total


def _best(lines: Lines, metric: str | None) -> tuple[str | None, float | None, int | None]:
    """The metric that is shown, its best value, and the step of that."""
    validated = sorted(name for name in lines.curves if name.startswith("val_"))
    for name in [metric] if metric is not None else ["val_loss", *validated, LOSS]:
        mode = guess_mode(name) or ("min" if metric is not None else None)
        if name in lines.curves and mode is not None:
            finite = [(value, step) for step, value in zip(*lines.curves[name], strict=True) if math.isfinite(value)]
            best = (min if mode == "min" else max)(finite, key=lambda pair: pair[0], default=(None, None))
            return name, *best
    return metric, None, None


def table(runs: Sequence[RunSummary]) -> Table:
    """The runs as a table for a terminal; below it what is damaged."""
    from rich.table import Table
    from rich.text import Text

    metrics = {run.metric for run in runs if run.best is not None}
    best_title = f"best {_short(metrics.pop() or '')}" if len(metrics) == 1 else "best"
    damaged = [f"{printable(run.name)}: {printable(run.reason)}" for run in runs if run.reason is not None]
    caption = Text("\n".join(damaged), style="red") if damaged else None
    shown = Table(box=None, header_style="bold", pad_edge=False, caption=caption, caption_justify="left")
    shown.add_column("run", overflow="fold", min_width=12)
    for title in ("state", "started (UTC)"):
        shown.add_column(title, no_wrap=True)
    for title in ("took", "step", best_title, "loss", "it/s", "wait"):
        shown.add_column(Text(printable(title)), justify="right", no_wrap=True)
    for run in runs:
        best = "" if run.best is None else f"{run.best:.4g}" + (f" {_short(run.metric or '')}" if best_title == "best" else "")
        how = f" ({run.how})" if run.how not in (None, "finished") else ""
        shown.add_row(
            Text(printable(run.name)),
            Text(printable(_short(run.state + how)), style=STYLES[run.state]),
            Text(printable((run.started or "")[:16].replace("T", " "))),
            "" if run.seconds is None else readable_seconds(run.seconds) if run.seconds >= 1 else "< 1 s",
            _shown(run.step, ","),
            Text(printable(best)),
            _shown(run.loss, ".4g"),
            _shown(run.rate, ",.0f" if run.rate and run.rate >= 100 else ".3g"),
            _shown(run.wait, ".0%").replace("%", " %"),
        )
    return shown


LONGEST = 200
STYLES = {"running": "cyan", "finished": "green", "stopped": "yellow", "killed": "red", "damaged": "red"}


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _short(text: str) -> str:
    """A text of a file, as much of it as a table holds."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
