"""Mirror: copies of a run's checkpoints in object storage, from which any machine can continue the run.

    commit-000000001                            what the first copy is: its name, its files with sizes, and who wrote it
    step-000000120.ab12cd34/model.safetensors   the files of a checkpoint, and those of the run (config.yaml, run.json, metrics.jsonl)

Files come first. The commit comes last, by a put that fails where there is one of this number, so two runs that write to one place
cannot both continue. The newest copy is the one with the highest number, which is found by asking for some of them.

The storage itself is given (an `ObjectFolder`): this package knows none. What is read back is checked as any checkpoint is, byte for byte.

Guarantee: a commit names files that are all there. A kill at any moment leaves the copies before it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
import xxhash
from msgspec import Meta

from stoker import _disk
from stoker.errors import CheckpointError, CheckpointInvalidError, StokerError, StoreDamagedError, StoreExistsError
from stoker.train.checkpoint import INDEX_NAME, LATEST, CheckpointFolder, saved_step

CHUNK_BYTES = 16 << 20
MAX_COMMIT_BYTES = 1 << 20
RUN_FILES = ("config.yaml", "inputs.json", "recipe.json", "scaler.safetensors", "feed.json", "metrics.jsonl", "run.json")
"""Files of a run beside its checkpoints; run.json makes a folder that of a run, so it is written last."""
_FILE = re.compile(r"[a-z][a-z0-9_]{0,31}\.(safetensors|json|jsonl|yaml)")
_COPY = re.compile(r"step-[0-9]{9,18}(-[1-9][0-9]{0,5})?\.[0-9a-f]{8}")


class ObjectFolder(Protocol):
    """A folder of object storage: what `stoker.store.object_storage.open_bucket` returns."""

    url: str

    def get(self, name: str, limit: int) -> tuple[bytes, Any]:
        """An object of at most `limit` bytes (one more where it is larger), and its tag."""

    def get_range(self, name: str, start: int, stop: int, is_right: Callable[[Any], bool]) -> Any:
        """Bytes `start` to `stop`, as a buffer that `is_right` has accepted."""

    def size(self, name: str) -> int | None:
        """The size of an object; None where there is none."""

    def put(self, name: str, data: Any, *, tag: Any = None, is_new: bool = False) -> None:
        """Write an object; with `is_new` only if there is none."""

    def remove(self, name: str) -> None:
        """Remove an object, if there is one."""


class CopiedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a copy."""

    num_bytes: Annotated[int, Meta(ge=0, le=2**53)]
    xxh3: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class CopyCommit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A copy that is complete."""

    format: str
    copy: str
    """The folder of its objects: the name of the checkpoint, and a random part that makes it that of one writer."""
    checkpoint: dict[str, CopiedFile]
    run: dict[str, CopiedFile]

    @property
    def name(self) -> str:
        """The name of the checkpoint."""
        return self.copy.partition(".")[0]


class Mirror:
    """The copies of one run; used by the process that writes its checkpoints."""

    def __init__(self, bucket: ObjectFolder, folder: Path, *, keep: int = 2) -> None:
        self._bucket = bucket
        self._folder = folder
        self._keep = keep
        self._number: int | None = None
        """Of the newest commit that this process knows."""
        self._copies: list[CopyCommit] = []
        """Those that this process has made, the newest one last."""

    def has_copies(self) -> bool:
        """Whether there is a copy of any run."""
        return self._bucket.size(_commit_name(1)) is not None

    def fetch(self) -> bool:
        """Bring the newest copy into the folder of the run, where that has none or an older checkpoint; False where it has not.

        Raises:
            CheckpointInvalidError: The copy is damaged, or was not made by stoker.
        """
        self._number = self._newest()
        if self._number == 0:
            return False
        commit = self._read(self._number)
        here = saved_step(self._folder / "checkpoints")
        if here is not None and here >= int(commit.name.split("-")[1]):
            return False
        target = self._folder / "checkpoints" / commit.name
        _disk.make_folder(target.parent)
        if not (target / INDEX_NAME).is_file():
            if target.exists():  # what an interrupted fetch or save has left
                _disk.remove_folder(target)
            _disk.make_folder(target)
            for name in sorted(commit.checkpoint, key=lambda name: name == INDEX_NAME):  # last: it makes the folder a checkpoint
                self._fetch(commit, name, commit.checkpoint[name], target / name)
        _disk.write_file(target.parent / LATEST, f"{commit.name}\n".encode())
        for name in sorted(commit.run, key=RUN_FILES.index):
            content = b"".join(bytes(data) for data in self._read_file(commit, name, commit.run[name]))
            _disk.write_file(self._folder / name, content)
        return True

    def upload(self, checkpoint: Path) -> str | None:
        """Copy a checkpoint that is on the disk, with the files of its run; returns a complaint where the storage refused.

        Raises:
            CheckpointError: Another run writes to the same place.
        """
        copy = f"{checkpoint.name}.{secrets.token_hex(4)}"
        try:
            if self._number is None:
                self._number = self._newest()
            commit = CopyCommit(
                format="stoker copy 1",
                copy=copy,
                checkpoint={path.name: self._send(copy, path) for path in sorted(checkpoint.iterdir())},
                run={name: self._send(copy, self._folder / name) for name in RUN_FILES if (self._folder / name).is_file()},
            )
            self._bucket.put(_commit_name(self._number + 1), msgspec.json.encode(commit), is_new=True)
        except StoreExistsError as error:
            raise CheckpointError(
                f"{self._bucket.url} has checkpoints of another run, which was faster. Resume from them, or choose another place."
            ) from error
        except StokerError as error:
            return f"{checkpoint} is written, but its copy in {self._bucket.url} is not: {error}"
        self._number += 1
        self._copies.append(commit)
        self._remove_old()
        return None

    def _send(self, copy: str, path: Path) -> CopiedFile:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                self._bucket.put(f"{copy}/{path.name}", b"")
                return CopiedFile(num_bytes=0, xxh3=xxhash.xxh3_128_hexdigest(b""))
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as data:
                self._bucket.put(f"{copy}/{path.name}", data)
                return CopiedFile(num_bytes=size, xxh3=xxhash.xxh3_128_hexdigest(data))

    def _remove_old(self) -> None:
        """Remove objects of copies that are not needed; those that the storage does not remove stay."""
        while len(self._copies) > self._keep:
            old = self._copies.pop(0)
            for name in [*old.checkpoint, *old.run]:
                with contextlib.suppress(StokerError):
                    self._bucket.remove(f"{old.copy}/{name}")

    def _newest(self) -> int:
        """The number of the newest commit, 0 where there is none. Numbers have no gaps, so some requests find it."""
        step = 1
        while self._bucket.size(_commit_name(step)) is not None:
            step *= 2
        low, high = step // 2, step  # the one at `low` is there (0: none needs to be), that at `high` is not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._bucket.size(_commit_name(middle)) is not None else (low, middle)
        return low

    def _read(self, number: int) -> CopyCommit:
        where = f"{self._bucket.url}/{_commit_name(number)}"
        data, _ = self._bucket.get(_commit_name(number), MAX_COMMIT_BYTES)
        if len(data) > MAX_COMMIT_BYTES:
            raise CheckpointInvalidError(f"{where} has more than {MAX_COMMIT_BYTES:,} bytes.")
        try:
            commit = msgspec.json.decode(data, type=CopyCommit)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CheckpointInvalidError(f"{where} does not say what a copy is: {error}.") from None
        names = [*commit.checkpoint, *commit.run]
        is_right = _COPY.fullmatch(commit.copy) and all(map(_FILE.fullmatch, names)) and set(commit.run) <= set(RUN_FILES)
        if not is_right or INDEX_NAME not in commit.checkpoint or commit.format != "stoker copy 1":
            raise CheckpointInvalidError(f"{where} names files that no run has. It was not made by stoker.")
        return commit

    def _fetch(self, commit: CopyCommit, name: str, file: CopiedFile, path: Path) -> None:
        """Write one file; it gets its name when its bytes have the right hash."""
        part = _disk.AppendFile.create(_disk.beside(path, "{}.tmp"))
        try:
            for data in self._read_file(commit, name, file):
                part.append(data)
            part.publish(path)
        finally:
            part.close()

    def _read_file(self, commit: CopyCommit, name: str, file: CopiedFile) -> Iterator[Any]:
        """The bytes of a file, in pieces; raises after the last one if they have another hash."""
        digest = xxhash.xxh3_128()
        for start in range(0, file.num_bytes, CHUNK_BYTES):
            stop = min(start + CHUNK_BYTES, file.num_bytes)
            try:
                data = self._bucket.get_range(f"{commit.copy}/{name}", start, stop, lambda found: True)
            except StoreDamagedError:
                raise CheckpointInvalidError(
                    f"{self._bucket.url}/{commit.copy}/{name} is shorter than the {file.num_bytes:,} bytes that were copied."
                ) from None
            digest.update(data)
            yield data
        if digest.hexdigest() != file.xxh3:
            raise CheckpointInvalidError(f"{self._bucket.url}/{commit.copy}/{name} does not match its hash: it was changed.")


def _commit_name(number: int) -> str:
    return f"commit-{number:09d}"


class MirroredFolder(CheckpointFolder):
    """Checkpoints that are copied when they are on the disk, by the thread that writes them."""

    def __init__(self, folder: str | Path, *, keep: int, mirror: Mirror) -> None:
        super().__init__(folder, keep=keep)
        self._mirror = mirror

    def _write(self, step: int, captured: Any, best: bool) -> str | None:
        complaint = super()._write(step, captured, best)
        failed = self._mirror.upload(self.last) if self.last is not None else None
        return failed or complaint
