"""Checkpoints: the folder of a run's checkpoints, written by one background thread and read back newest first.

    checkpoints/
      step-000001200/  step-000001300/      one checkpoint each; "-2" follows if a step is saved again
      LATEST  BEST                          the name of one of them, replaced in one step

The law: LATEST names a checkpoint that is whole and safe on the disk, at any moment and after any crash. It is replaced when
the new one is safe, and the old ones are removed when LATEST is. A disk that refuses does not end the training; the third
refusal in a row does.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stoker import files
from stoker.errors import CheckpointError, CheckpointInvalid, DiskError, OptionError
from stoker.train import checkpoint
from stoker.train.checkpoint import Captured
from stoker.train.image import Image

LATEST = "LATEST"
BEST = "BEST"
MAX_FAILURES = 3
_NAME = re.compile(r"step-([0-9]{9,18})(?:-([1-9][0-9]{0,5}))?")
_NAME_BYTES = 64
_RETRIES = 20  # for a reader that is overtaken by a writer again and again


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read and verified. Tensors are on the CPU."""

    path: Path
    step: int
    parts: dict[str, Any]
    facts: dict[str, Any]


class Checkpoints:
    """The folder; `keep` of the newest checkpoints stay, and the best one. Close it, or use it as a context manager."""

    def __init__(self, folder: str | Path, *, keep: int = 2) -> None:
        if keep < 1:
            raise OptionError(f"keep={keep}: at least 1 checkpoint must be kept.")
        self.folder = Path(folder).absolute()
        self.keep = keep
        self.last: Path | None = None
        """The newest checkpoint that this object has written or read, once that has ended well."""
        self._failures = 0
        self._memory: dict[str, Image] = {}
        self._known: set[str | None] = {None}  # what LATEST may say unless another run writes here
        self._line: list[str] = []  # checkpoints of this run, each gone on from by the next
        self._writer: ThreadPoolExecutor | None = None
        self._writing: tuple[Future[str | None], int, int] | None = None

    @property
    def busy(self) -> bool:
        """Whether a save is being written: another one would have to wait for it."""
        return self._writing is not None and not self._writing[0].done()

    def save(
        self, step: int, parts: Mapping[str, Any], facts: Mapping[str, Any], *, best: bool = False, wait: bool = False
    ) -> None:
        """Copy the state, then write it in the background, or with `wait` before this returns.

        `facts` are plain values; "step" is added. Waits for the save before, whose memory it uses. A disk that refused that
        save is told as a warning here, and after three in a row as `CheckpointError`.
        """
        if type(step) is not int or not 0 <= step < 10**18:
            raise OptionError(f"step={step!r}: expected a whole number from 0 on.")
        self.wait()
        self.refuse_other_runs()
        captured = checkpoint.capture(parts, {**facts, "step": step}, memory=self._memory)
        if self._writer is None:
            # Its thread is waited for when the interpreter ends, so a save that was begun is not lost.
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="stoker-checkpoint")
        self._writing = (self._writer.submit(self._write, step, captured, best), step, captured.num_bytes)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written, and tell how it went: a warning, or after three failures an error."""
        if self._writing is None:
            return
        future, step, num_bytes = self._writing
        try:
            complaint = future.result()
        except DiskError as error:
            self._writing = None
            self._fail(error, step, num_bytes)
        except Exception:
            self._writing = None
            raise
        else:
            self._writing = None
            self._failures = 0
            if complaint is not None:
                warnings.warn(complaint, stacklevel=2)

    def close(self) -> None:
        """Wait for what is being written and end the thread."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
                self._writer = None
            self._memory.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def latest(self, *, strict: bool = False) -> Checkpoint | None:
        """The newest checkpoint that verifies; None if there is none at all. Falling back to an older one is warned of.

        With `strict`, a newest one that does not verify raises `CheckpointInvalid`, as it does where none verifies. After this
        call saves go on from there: what was newer goes, as does what is not whole.
        """
        self.wait()
        named, candidates = self._candidates()
        for _ in range(_RETRIES):
            found, failed = self._first_whole(candidates[:1] if strict else candidates)
            now, newer = self._candidates()
            if found is not None and not failed:
                break
            if (now, newer) == (named, candidates):
                break
            named, candidates = now, newer  # a writer has gone on meanwhile, and may have removed what was being read
        self._known = {named}
        if failed and (found is None or strict):
            raise CheckpointInvalid(f"{failed[0]} " + ("It is the newest one." if strict else "No other checkpoint is whole."))
        if found is None:
            return None
        if failed:
            warnings.warn(f"{' '.join(map(str, failed))} Falling back to {found.path}, of step {found.step:,}.", stacklevel=2)
        self.last = found.path
        untried = (name for name in candidates[len(failed) + 1 :] if _number(name) < _number(found.path.name))
        self._line = [*sorted(untried, key=_number), found.path.name]
        return found

    def refuse_other_runs(self) -> None:
        """Raise if there are checkpoints that this run did not start from: it must not replace them. Every save asks; ask early."""
        found = self._read_name(LATEST)
        if found not in self._known:
            raise CheckpointError(
                f"{self.folder} has checkpoints of another run (LATEST is {found!r}). Resume from them, or choose another folder."
            )

    def best(self) -> Checkpoint | None:
        """The checkpoint that BEST names; None if there is no BEST. One that does not verify raises `CheckpointInvalid`."""
        self.wait()
        for _ in range(_RETRIES):
            name = self._read_name(BEST)
            try:
                return None if name is None else self._read(name)
            except CheckpointInvalid:
                if self._read_name(BEST) == name:
                    raise
        raise CheckpointInvalid(f"{self.folder / BEST} changes faster than it can be read.")

    # ---- reading ----

    def _candidates(self) -> tuple[str | None, list[str]]:
        """What LATEST says, and all checkpoints in the order in which to try them: that one, older ones, newer ones."""
        named = self._read_name(LATEST)
        names = sorted((name for name in self._names() if self._is_committed(name)), key=_number, reverse=True)
        if named is None or not _NAME.fullmatch(named):
            return named, names if named is None else [named, *names]
        newer = [name for name in names if _number(name) > _number(named)]
        return named, [named, *(name for name in names if _number(name) < _number(named)), *newer]

    def _first_whole(self, names: list[str]) -> tuple[Checkpoint | None, list[CheckpointInvalid]]:
        failed: list[CheckpointInvalid] = []
        for name in names:
            try:
                return self._read(name), failed
            except CheckpointInvalid as error:
                failed.append(error)
        return None, failed

    def _read(self, name: str) -> Checkpoint:
        if not _NAME.fullmatch(name):
            raise CheckpointInvalid(f"{self.folder / LATEST}: expected the name of a checkpoint, found {name[:40]!r}.")
        path = self.folder / name
        if path.is_symlink() or not path.is_dir():
            raise CheckpointInvalid(f"{path} is missing.")
        parts, facts = checkpoint.read(path)
        step = _number(name)[0]
        if facts.get("step") != step:
            raise CheckpointInvalid(f"{path} is of step {facts.get('step')!r}: its folder was renamed.")
        return Checkpoint(path=path, step=step, parts=parts, facts=facts)

    def _read_name(self, pointer: str) -> str | None:
        """What LATEST or BEST says, which may be anything; None if it is not there."""
        path = self.folder / pointer
        try:
            fd = files.open_plain(path, CheckpointInvalid)
        except FileNotFoundError:
            return None
        with files.naming(path):
            try:
                data = os.read(fd, _NAME_BYTES)
            finally:
                os.close(fd)
        return data.decode("utf-8", "replace").removesuffix("\n")

    def _names(self) -> list[str]:
        """All folders that have the name of a checkpoint, whole or not."""
        with files.naming(self.folder):
            if not self.folder.is_dir():
                return []
            return [entry.name for entry in self.folder.iterdir() if _NAME.fullmatch(entry.name)]

    def _is_committed(self, name: str) -> bool:
        return checkpoint.is_committed(self.folder / name)

    # ---- writing ----

    def _write(self, step: int, captured: Captured, best: bool) -> str | None:
        """Write, name and clean up, in this order; runs in the background. What is returned is a complaint."""
        files.make_folder(self.folder)
        path = self._new_path(step)
        checkpoint.write_captured(path, captured)
        # From here on nothing removes the new folder: even a pointer whose sync failed may name it after a crash.
        self._known.add(path.name)
        if best:  # before LATEST: a run that goes on from LATEST relies on the best one it knows of
            files.write_file(self.folder / BEST, f"{path.name}\n".encode())
        files.write_file(self.folder / LATEST, f"{path.name}\n".encode())
        self.last, self._known = path, {path.name}
        self._line = [*self._line, path.name][-self.keep :]
        try:
            self._remove_old()
        except DiskError as error:
            return f"{path} is written, but older checkpoints could not be removed: {error}"
        return None

    def _new_path(self, step: int) -> Path:
        """A folder that is not there; what killed saves left is not reused, so that nothing is ever written over."""
        name, again = f"step-{step:09d}", 2
        while (self.folder / name).is_symlink() or (self.folder / name).exists():
            name, again = f"step-{step:09d}-{again}", again + 1
        return self.folder / name

    def _remove_old(self) -> None:
        """Keep the newest ones of this run and the best one; what killed saves left, and what was not gone on from, goes."""
        kept = {*self._line, self._read_name(BEST)}
        for name in sorted(self._names(), key=_number):
            if name not in kept:
                checkpoint.remove(self.folder / name)
        for pointer in (LATEST, BEST):
            files.remove_file(self.folder / f"{pointer}.tmp")

    def _fail(self, error: DiskError, step: int, num_bytes: int) -> None:
        self._failures += 1
        last = f"the last good one is {self.last}" if self.last is not None else "there is none before it"
        told = f"the checkpoint of step {step:,} ({num_bytes:,} bytes) was not written, {last}: {_text(error)}"
        if self._failures >= MAX_FAILURES:
            raise CheckpointError(f"{told} These were {self._failures} failures in a row.") from error
        warnings.warn(f"{told} Training goes on.", stacklevel=4)


def saved_step(folder: Path) -> int | None:
    """The step of the checkpoint that LATEST names; None where there is none. Whether it is whole is not looked at."""
    with Checkpoints(folder) as checkpoints:
        name = checkpoints._read_name(LATEST)
    return _number(name)[0] if name is not None and _NAME.fullmatch(name) else None


def is_own_name(name: str) -> bool:
    """Whether something in a folder of checkpoints has a name that this module gives."""
    return bool(_NAME.fullmatch(name)) or name in (LATEST, BEST, f"{LATEST}.tmp", f"{BEST}.tmp")


def _text(error: DiskError) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def _number(name: str) -> tuple[int, int]:
    """Step and number of the attempt, by which checkpoints are ordered."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2] or 1)) if found is not None else (-1, 0)
