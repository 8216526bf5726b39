"""CheckpointFolder: the state of a run on disk, written in the background and read back whole or not at all.

    Image           the tensors of a part in host memory, byte for byte as they will be in its file
    Checkpoint      one folder: safetensors files, and checkpoint.json, which is written last
    CheckpointFolder     the folder of all checkpoints of a run, with LATEST and BEST

An image stands between the training loop, which continues to change the tensors, and the thread that writes. Its memory is reused
for the next save. On a GPU the training stream is held up only for a gather within the device; another stream then copies that to
pinned memory while the next steps run. Where the device has no room for the gathered copy, tensors are copied directly, and the
training stream, not the host, waits for that: the next update would overwrite what is being copied.

Guarantee: the bytes are those that the current stream would have seen when `capture` was called, whatever comes after.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, NamedTuple, Self

import msgspec
import torch
import xxhash
from msgspec import Meta
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stoker import _disk
from stoker._disk import AppendFile
from stoker._types import Count, converted
from stoker.errors import CheckpointError, CheckpointInvalidError, DiskError
from stoker.train.state_dict import Layout, PlaceRun, Signature, flatten, lay_out, signature, unflatten

CHUNK_BYTES = 16 << 20
_SPARE_SHARE = 0.5  # of the device memory that is free: more would take it from the next step


class Image:
    """Memory for one part; `capture` fills it, `chunks` gives what to write. One capture at a time."""

    def __init__(self) -> None:
        self._signature: Signature | None = None
        self._layout: Layout = lay_out(())
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._views: list[list[Tensor]] = []  # of each run
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._events: list[torch.cuda.Event] = []
        self._has_room: dict[torch.device, bool] = {}

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return len(self._layout.header) + self._layout.num_bytes

    def capture(self, tensors: Mapping[str, Tensor]) -> None:
        """Take in all tensors as they are now. Returns when they may be changed by work of the current stream."""
        entries = signature(tensors)
        if entries != self._signature:
            self._arrange(entries)
        self._events.clear()
        for run, views in zip(self._layout.runs, self._views, strict=True):
            sources = [tensors[place.name] for place in run.places]
            if run.device.type == "cuda":
                self._capture_cuda(run, views, sources)
            else:
                for view, source in zip(views, sources, strict=True):
                    view.copy_(source.view(run.carrier))

    def wait(self) -> None:
        """Wait until all bytes are here; sleeps, and holds no GIL."""
        for event in self._events:
            event.synchronize()

    def chunks(self) -> Iterator[memoryview]:
        """The bytes of the file, in pieces. They are valid until the next `capture`."""
        yield memoryview(self._layout.header)
        values = memoryview(self._memory.numpy())
        for begin in range(0, self._layout.num_bytes, CHUNK_BYTES):
            yield values[begin : min(begin + CHUNK_BYTES, self._layout.num_bytes)]

    def _arrange(self, entries: Signature) -> None:
        self._layout = layout = lay_out(entries)
        pinned = any(run.device.type == "cuda" for run in layout.runs)
        if layout.num_bytes != len(self._memory) or pinned != self._memory.is_pinned():
            self._memory = torch.empty(0, dtype=torch.uint8)  # first give back the old
            self._memory = torch.empty(layout.num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._views = [
            [self._memory[place.begin : place.end].view(run.carrier).view(place.shape) for place in run.places]
            for run in layout.runs
        ]
        self._has_room = {run.device: _has_room(run.device, layout) for run in layout.runs if run.device.type == "cuda"}
        self._signature = entries

    def _capture_cuda(self, run: PlaceRun, views: list[Tensor], sources: list[Tensor]) -> None:
        stream = self._streams.get(run.device)
        if stream is None:
            stream = self._streams[run.device] = torch.cuda.Stream(run.device)  # type: ignore[no-untyped-call]
        training = torch.cuda.current_stream(run.device)
        gathered = None
        if self._has_room[run.device]:
            try:  # all tensors of the run end to end in device memory, by one kernel
                gathered = torch.cat([source.reshape(-1).view(run.carrier) for source in sources])
            except torch.OutOfMemoryError:
                self._has_room[run.device] = False
        stream.wait_stream(training)
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            if gathered is not None:
                self._memory[run.begin : run.end].view(run.carrier).copy_(gathered, non_blocking=True)
                gathered.record_stream(stream)  # its memory is free for training once the copy is done, and not before
            else:
                for view, source in zip(views, sources, strict=True):
                    view.copy_(source.view(run.carrier), non_blocking=True)
            done.record(stream)
        if gathered is None:
            training.wait_event(done)
        self._events.append(done)


def _has_room(device: torch.device, layout: Layout) -> bool:
    """Whether a second copy of the tensors fits on their device beside what training needs; slow to ask."""
    needed = sum(run.end - run.begin for run in layout.runs if run.device == device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return needed <= _SPARE_SHARE * (torch.cuda.mem_get_info(device)[0] + held)


# Checkpoint: one folder with a safetensors file for each part that has tensors, and checkpoint.json, which is written last.
#
#     step-000001200/
#       model.safetensors  optimizer.safetensors  ...     read by any tool that knows the format
#       checkpoint.json      facts of the run; of each part its skeleton, and size and hash of its file; a digest of itself
#
# Guarantee: checkpoint.json gets its name when all else is safe on the disk. So a folder without it is debris, and one with it is
# whole; reading hashes every byte, and nothing that is read is ever run.

INDEX_NAME = "checkpoint.json"
VERSION = 1
MAX_INDEX_BYTES = 64 << 20
_SUFFIX = ".safetensors"
_PART_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_ZEROS = "0" * 32


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a part's file."""

    num_bytes: int
    xxh3: str


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part: its skeleton, and its file if it has tensors."""

    name: str
    file: File | None
    skeleton: Any


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of checkpoint.json."""

    format: Literal["stoker checkpoint"]
    version: int
    digest: str
    facts: Any
    parts: list[Part]


class CapturedState(NamedTuple):
    """A state as it was at one moment, on its way to the disk."""

    facts: Any
    skeletons: dict[str, Any]
    images: dict[str, Image]
    """Of the parts that have tensors."""


def capture(parts: Mapping[str, Any], facts: Mapping[str, Any], *, memory: dict[str, Image] | None = None) -> CapturedState:
    """Copy a state into host memory; `memory` of an earlier capture is used again."""
    tensors, encoded_facts = flatten(dict(facts))
    if tensors:
        raise CheckpointError(f"facts.{next(iter(tensors))} is a tensor: facts are plain values, tensors go into parts.")
    memory = {} if memory is None else memory
    skeletons, images = {}, {}
    for name, tree in parts.items():
        if not _PART_NAME.fullmatch(name):
            raise CheckpointError(f"the part {name!r} has a name that is not made of 1 to 32 lowercase letters, digits and '_'.")
        tensors, skeletons[name] = flatten(tree)
        if tensors:
            images[name] = memory.setdefault(name, Image())
            images[name].capture(tensors)
    return CapturedState(encoded_facts, skeletons, images)


def write(folder: Path, parts: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Make a checkpoint in a folder that does not exist. Once this returns it survives a power loss; if it raises, it is gone."""
    write_captured(folder, capture(parts, facts))


def write_captured(folder: Path, captured: CapturedState) -> None:
    """The part of `write` that needs no tensor of the training."""
    if not _disk.make_folder(folder):
        raise CheckpointError(f"{folder} exists: a checkpoint is never written over.")
    try:
        written = {name: _write_part(folder, name, image) for name, image in captured.images.items()}
        if written:
            with _disk.naming(folder):
                _disk.disk.sync_folder(folder)
        parts = [Part(name=name, file=written.get(name), skeleton=skeleton) for name, skeleton in captured.skeletons.items()]
        index = Index(format="stoker checkpoint", version=VERSION, digest=_ZEROS, facts=captured.facts, parts=parts)
        data = _dump(index)
        if len(data) > MAX_INDEX_BYTES:
            raise CheckpointError(f"{folder}: what is not a tensor takes {len(data):,} bytes, but at most {MAX_INDEX_BYTES:,} fit.")
        _disk.write_file(folder / INDEX_NAME, data)
    except BaseException:
        with contextlib.suppress(DiskError):  # the first error is the one to report; debris is removed by the next save
            remove(folder)
        raise


def remove(folder: Path) -> None:
    """Remove a checkpoint: first what makes it one, then the rest."""
    _disk.remove_file(folder / INDEX_NAME)
    _disk.remove_folder(folder)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read parts and facts, and verify every byte; anything that is not exactly right raises `CheckpointInvalidError`."""
    index = _read_index(folder)
    expected = {INDEX_NAME, *(part.name + _SUFFIX for part in index.parts if part.file is not None)}
    with _reading(folder):
        strange = sorted({entry.name for entry in folder.iterdir()} - expected)
    if strange:
        raise CheckpointInvalidError(f"{folder} holds {strange[0]!r}, which is not part of the checkpoint. Remove it.")
    parts = {}
    for part in index.parts:
        tensors = {} if part.file is None else _read_tensors(folder / (part.name + _SUFFIX), part.file)
        parts[part.name] = _unflatten(tensors, part.skeleton, f"{folder}, part {part.name!r}")
    facts = _unflatten({}, index.facts, f"{folder}, facts")
    if not isinstance(facts, dict):
        raise CheckpointInvalidError(f"{folder}, facts: expected named values, found {type(facts).__name__}.")
    return parts, facts


def _unflatten(tensors: Mapping[str, Tensor], skeleton: Any, where: str) -> Any:
    try:
        return unflatten(tensors, skeleton)
    except CheckpointInvalidError as error:
        raise CheckpointInvalidError(f"{where}: {error}") from None


def _write_part(folder: Path, name: str, image: Image) -> File:
    path = folder / (name + _SUFFIX)
    file = AppendFile.create(path.with_name(path.name + ".tmp"))
    try:
        image.wait()
        digest = xxhash.xxh3_128()
        for chunk in image.chunks():
            file.append(chunk)
            digest.update(chunk)
        file.publish(path)
    finally:
        file.close()
    return File(num_bytes=file.num_bytes, xxh3=digest.hexdigest())


def _dump(index: Index) -> bytes:
    """One index has one text, in which the digest is that of the text with zeros in its place."""
    text = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(index, digest=_ZEROS)), indent=1) + b"\n"
    return text.replace(_ZEROS.encode(), xxhash.xxh3_128_hexdigest(text).encode(), 1)


class _AnyVersion(msgspec.Struct):
    version: int


def _read_index(folder: Path) -> Index:
    path = folder / INDEX_NAME
    with _opened(path) as fd:
        size = os.fstat(fd).st_size
        if size > MAX_INDEX_BYTES:
            raise CheckpointInvalidError(f"{path} has {size:,} bytes, but at most {MAX_INDEX_BYTES:,} are allowed.")
        data = os.pread(fd, size, 0)
    try:
        version = msgspec.json.decode(data, type=_AnyVersion).version
        if version != VERSION:
            raise CheckpointInvalidError(f"{path} has format version {version}, but this stoker reads version {VERSION}.")
        index = msgspec.json.decode(data, type=Index)
        same = _dump(index) == data
    except (msgspec.DecodeError, UnicodeError, RecursionError, OverflowError) as error:
        raise CheckpointInvalidError(f"{path} is not the index of a checkpoint: {error}.") from None
    names: set[str] = set()
    for i, part in enumerate(index.parts):
        file, rules = part.file or File(num_bytes=0, xxh3=_ZEROS), "a new name of 1 to 32 lowercase letters, digits and '_'"
        for is_right, field, expected, found in (
            (_PART_NAME.fullmatch(part.name) and part.name not in names, "name", rules, part.name),
            (file.num_bytes >= 0, "file.num_bytes", "a size", file.num_bytes),
            (_DIGEST.fullmatch(file.xxh3), "file.xxh3", "32 hex digits", file.xxh3),
        ):
            if not is_right:
                raise CheckpointInvalidError(f"{path}: $.parts[{i}].{field}: expected {expected}, found {found!r}.")
        names.add(part.name)
    if not same:
        raise CheckpointInvalidError(f"{path} does not match its digest: it was changed after it was written.")
    return index


def _read_tensors(path: Path, file: File) -> dict[str, Tensor]:
    """All tensors of a file, in memory of their own: the file may be removed or cut while they are used."""
    with _opened(path) as fd:
        size = os.fstat(fd).st_size
        if size != file.num_bytes:
            raise CheckpointInvalidError(f"{path} has {size:,} bytes, but {file.num_bytes:,} are expected.")
        if _hash(fd, size, path) != file.xxh3:
            raise CheckpointInvalidError(f"{path} does not match its hash: it was changed or swapped after it was written.")
        try:
            # By the descriptor: what is parsed is what was hashed, whatever the name means by now.
            with safe_open(f"/proc/self/fd/{fd}", framework="pt") as opened:
                return {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118 - it is not a dict
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointInvalidError(f"{path} is not a safetensors file: {reason}.") from error


def _hash(fd: int, size: int, path: Path) -> str:
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(CHUNK_BYTES, size)))
    done = 0
    while done < size:
        count = os.preadv(fd, [buffer[: size - done]], done)
        if count == 0:
            raise CheckpointInvalidError(f"{path} became shorter while it was read.")
        digest.update(buffer[:count])
        done += count
    return digest.hexdigest()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        fd = _disk.open_plain(path, CheckpointInvalidError)
    except FileNotFoundError:
        raise CheckpointInvalidError(f"{path} is missing.") from None
    try:
        with _reading(path):
            yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What the disk refuses to read is as good as damaged: an older checkpoint may still be whole."""
    try:
        yield
    except OSError as error:
        raise CheckpointInvalidError(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from error


# CheckpointFolder: the folder of a run's checkpoints, written by one background thread and read back newest first.
#
#     checkpoints/
#       step-000001200/  step-000001300/      one checkpoint each; "-2" follows if a step is saved again
#       LATEST  BEST                          the name of one of them, replaced in one step
#
# Guarantee: LATEST names a checkpoint that is whole and safe on the disk, at any moment and after any crash. It is replaced when
# the new one is safe, and the old ones are removed when LATEST is. A disk that refuses does not end the training; the third
# refusal in a row does.

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


class CheckpointFolder:
    """The folder; `keep` of the newest checkpoints stay, and the best one. Close it, or use it as a context manager."""

    def __init__(self, folder: str | Path, *, keep: int = 2) -> None:
        self.folder = Path(folder).absolute()
        self.keep: int = converted("keep", keep, Count)
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
        save is reported as a warning here, and after three in a row as `CheckpointError`.
        """
        step = converted("step", step, Annotated[int, Meta(ge=0, lt=10**18)])
        self.wait()
        self.refuse_other_runs()
        captured = capture(parts, {**facts, "step": step}, memory=self._memory)
        if self._writer is None:
            # Its thread is waited for when the interpreter ends, so a save that was begun is not lost.
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="stoker-checkpoint")
        num_bytes = sum(image.num_bytes for image in captured.images.values())
        self._writing = (self._writer.submit(self._write, step, captured, best), step, num_bytes)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written, and report how it went: a warning, or after three failures an error."""
        if self._writing is None:
            return
        future, step, num_bytes = self._writing
        error = future.exception()  # a Ctrl-C while this waits leaves the save to the next call
        self._writing = None
        if isinstance(error, DiskError):
            self._failures += 1
            last = f"the last good one is {self.last}" if self.last is not None else "there is none before it"
            reason = error.args[1] if len(error.args) > 1 else error
            text = f"the checkpoint of step {step:,} ({num_bytes:,} bytes) was not written, {last}: {reason}"
            if self._failures >= MAX_FAILURES:
                raise CheckpointError(f"{text} These were {self._failures} failures in a row.") from error
            warnings.warn(f"{text} Training continues.", stacklevel=3)
            return
        complaint = future.result()
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

        With `strict`, a newest one that does not verify raises `CheckpointInvalidError`, as it does where none verifies. After this
        call saves continue from there: what was newer goes, as does what is not whole.
        """
        self.wait()
        named, candidates = self._candidates()
        for _ in range(_RETRIES):
            newest, failed = None, []
            for name in candidates[:1] if strict else candidates:
                try:
                    newest = self._read(name)
                    break
                except CheckpointInvalidError as error:
                    failed.append(error)
            now = self._candidates()
            if (newest is not None and not failed) or now == (named, candidates):
                break
            named, candidates = now  # a writer has gone on meanwhile, and may have removed what was being read
        self._known = {named}
        if failed and (newest is None or strict):
            raise CheckpointInvalidError(f"{failed[0]} " + ("It is the newest one." if strict else "No other checkpoint is whole."))
        if newest is None:
            return None
        if failed:
            warnings.warn(f"{' '.join(map(str, failed))} Falling back to {newest.path}, of step {newest.step:,}.", stacklevel=2)
        self.last = newest.path
        untried = (name for name in candidates[len(failed) + 1 :] if _number(name) < _number(newest.path.name))
        self._line = [*sorted(untried, key=_number), newest.path.name]
        return newest

    def refuse_other_runs(self) -> None:
        """Raise if there are checkpoints that this run did not start from: it must not replace them. Every save asks; ask early."""
        named = self._read_name(LATEST)
        if named not in self._known:
            raise CheckpointError(
                f"{self.folder} has checkpoints of another run (LATEST is {named!r}). Resume from them, or choose another folder."
            )

    def best(self) -> Checkpoint | None:
        """The checkpoint that BEST names; None if there is no BEST. One that does not verify raises `CheckpointInvalidError`."""
        self.wait()
        for _ in range(_RETRIES):
            name = self._read_name(BEST)
            try:
                return None if name is None else self._read(name)
            except CheckpointInvalidError:
                if self._read_name(BEST) == name:
                    raise
        raise CheckpointInvalidError(f"{self.folder / BEST} changes faster than it can be read.")

    # ---- reading ----

    def _candidates(self) -> tuple[str | None, list[str]]:
        """What LATEST says, and all checkpoints in the order in which to try them: that one, older ones, newer ones."""
        named = self._read_name(LATEST)
        # Only a checkpoint that was written to its end has an index. That it is still whole only `read` can tell.
        whole = (name for name in self._names() if (self.folder / name / INDEX_NAME).is_file())
        names = sorted(whole, key=_number, reverse=True)
        if named is None or not _NAME.fullmatch(named):
            return named, names if named is None else [named, *names]
        newer = [name for name in names if _number(name) > _number(named)]
        return named, [named, *(name for name in names if _number(name) < _number(named)), *newer]

    def _read(self, name: str) -> Checkpoint:
        if not _NAME.fullmatch(name):
            raise CheckpointInvalidError(f"{self.folder / LATEST}: expected the name of a checkpoint, found {name[:40]!r}.")
        path = self.folder / name
        if path.is_symlink() or not path.is_dir():
            raise CheckpointInvalidError(f"{path} is missing.")
        parts, facts = read(path)
        step = _number(name)[0]
        if facts.get("step") != step:
            raise CheckpointInvalidError(f"{path} is of step {facts.get('step')!r}: its folder was renamed.")
        return Checkpoint(path=path, step=step, parts=parts, facts=facts)

    def _read_name(self, pointer: str) -> str | None:
        """What LATEST or BEST says, which may be anything; None if it is not there."""
        path = self.folder / pointer
        try:
            fd = _disk.open_plain(path, CheckpointInvalidError)
        except FileNotFoundError:
            return None
        with _disk.naming(path):
            try:
                data = os.read(fd, _NAME_BYTES)
            finally:
                os.close(fd)
        return data.decode("utf-8", "replace").removesuffix("\n")

    def _names(self) -> list[str]:
        """All folders that have the name of a checkpoint, whole or not."""
        with _disk.naming(self.folder):
            if not self.folder.is_dir():
                return []
            return [entry.name for entry in self.folder.iterdir() if _NAME.fullmatch(entry.name)]

    # ---- writing ----

    def _write(self, step: int, captured: CapturedState, best: bool) -> str | None:
        """Write, name and clean up, in this order; runs in the background. What is returned is a complaint."""
        _disk.make_folder(self.folder)
        path = self._new_path(step)
        write_captured(path, captured)
        # From here on nothing removes the new folder: even a pointer whose sync failed may name it after a crash.
        self._known.add(path.name)
        if best:  # before LATEST: a run that resumes from LATEST relies on the best one it knows of
            _disk.write_file(self.folder / BEST, f"{path.name}\n".encode())
        _disk.write_file(self.folder / LATEST, f"{path.name}\n".encode())
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
        needed = {*self._line, self._read_name(BEST)}
        for name in sorted(self._names(), key=_number):
            if name not in needed:
                remove(self.folder / name)
        for pointer in (LATEST, BEST):
            _disk.remove_file(self.folder / f"{pointer}.tmp")


def saved_step(folder: Path) -> int | None:
    """The step of the checkpoint that LATEST names; None where there is none. Whether it is whole is not checked."""
    with CheckpointFolder(folder) as checkpoints:
        name = checkpoints._read_name(LATEST)
    return _number(name)[0] if name is not None and _NAME.fullmatch(name) else None


def is_own_name(name: str) -> bool:
    """Whether something in a folder of checkpoints has a name that this module gives."""
    return bool(_NAME.fullmatch(name)) or name in (LATEST, BEST, f"{LATEST}.tmp", f"{BEST}.tmp")


def _number(name: str) -> tuple[int, int]:
    """Step and number of the attempt, by which checkpoints are ordered."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2] or 1)) if match is not None else (-1, 0)
