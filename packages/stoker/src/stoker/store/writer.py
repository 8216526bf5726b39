"""Writing stores, all or nothing: `new_store` locks a folder and commits a manifest, `save_store` writes a whole store.

    new_store, check_target      a store may replace a store, in one step, and never anything else
    make_work, remove_debris     the work folder, and what killed packs and replaced stores leave

A shard that the manifest names is never removed, nor is a file that no pack could have made.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker import _disk
from stoker._types import Array
from stoker.errors import DiskError, ManifestError, OptionError, StoreDamagedError, StoreExistsError, StoreNotFoundError
from stoker.store import manifest as manifests
from stoker.store.manifest import (
    BLOCK_BYTES,
    MANIFEST_NAME,
    MARK_NAME,
    SHARD_NAME,
    WORK_NAME,
    ColumnEntry,
    Manifest,
    Shard,
    SourceEntry,
    Text,
    read_manifest,
)
from stoker.store.shards import Column, ColumnFile, StoredColumns, entry_of, map_shards, pieces

WORK_FILE = re.compile(r"(journal|mark)(\.tmp)?|(run\d+|final)\.\w+|categories\d+o?")  # names of the files in a work folder
PARTS_NAME = "parts"  # the folder of what was appended, one store each
PARTS_LIST = "parts.jsonl"  # one line each; the manifest says how many lines count
PART_NAME = re.compile(r"\d{6,}")
_PART_FILES = {MANIFEST_NAME, MANIFEST_NAME + ".tmp", WORK_NAME, ".lock"}
_LATE = ("journal", MARK_NAME)  # removed last: with a journal the same pack may finish what it began


def make_work(folder: Path) -> None:
    """Make an empty, marked work folder in the folder of a store; files that grow belong there."""
    remove_debris(folder)  # before the mark of an earlier process, which says who made the shards
    remove_work(folder)
    _disk.make_folder(folder / WORK_NAME)
    _disk.write_file(folder / WORK_NAME / MARK_NAME, b"a pack of Stoker\n")


def remove_work(folder: Path) -> None:
    """Remove the work folder, its mark last."""
    work = folder / WORK_NAME
    entries = sorted(work.iterdir()) if work.is_dir() and not work.is_symlink() else []
    for entry in sorted(entries, key=lambda entry: _LATE.index(entry.name) + 1 if entry.name in _LATE else 0):
        _disk.remove_folder(entry)
    _disk.remove_folder(work)


def remove_debris(folder: Path) -> None:
    """Remove shards that the manifest does not name, and parts where it names none; nothing if the manifest is damaged."""
    named: set[str] = set()
    has_parts = False
    if os.path.lexists(folder / MANIFEST_NAME):
        try:
            manifest = read_manifest(folder)
        except ManifestError:
            return
        named, has_parts = {shard.file for shard in manifests.shards(manifest)}, manifest.parts is not None
    if not has_parts:
        remove_parts(folder)
    for entry in sorted(folder.iterdir()):
        if SHARD_NAME.fullmatch(entry.name) and entry.name not in named:
            _disk.remove_file(entry)
    _disk.remove_file(folder / (MANIFEST_NAME + ".tmp"))


def remove_parts(folder: Path, *, after: int = 0) -> None:
    """Remove the parts that no manifest names: those with a number above `after`; without any, their list and folder too."""
    parts = folder / PARTS_NAME
    entries = sorted(parts.iterdir()) if parts.is_dir() and not parts.is_symlink() else []
    for entry in entries:
        if PART_NAME.fullmatch(entry.name) and int(entry.name) > after and entry.is_dir() and not entry.is_symlink():
            # The manifest last: it says who made the shards.
            for name in sorted((path.name for path in entry.iterdir()), key=lambda name: name == MANIFEST_NAME):
                if name in _PART_FILES or SHARD_NAME.fullmatch(name):
                    _disk.remove_folder(entry / name)
            if not any(entry.iterdir()):
                _disk.remove_folder(entry)
    if not after:
        _disk.remove_file(folder / PARTS_LIST)
        if entries and not any(parts.iterdir()):
            _disk.remove_folder(parts)


@contextlib.contextmanager
def new_store(
    folder: Path, sources: Sequence[Path | None], *, replace: bool, beside: Mapping[str, bytes] | None = None
) -> Iterator[Callable[[Manifest], None]]:
    """Hold the lock of `folder` while the block writes the shards of a new store, and give the function that commits its manifest.

    Until the commit an existing store stays as it was. After an error the folder is as before.

    Args:
        folder: the folder of the new store.
        sources: paths that must not be the folder itself.
        replace: replace a store that is there already.
        beside: names and bytes of small files that the store needs beside its columns. They are written before the manifest, so a
            store is never without them.

    Raises:
        StoreExistsError: there is a store already, and `replace` is False.
        StoreLockedError: another process is writing to the folder.

    Example:
        >>> import tempfile
        >>> from stoker.store import open_store
        >>> from stoker.store.manifest import NonFinite
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     folder = Path(parent) / "a.stoker"
        ...     with new_store(folder, [], replace=False) as commit:
        ...         make_work(folder)
        ...         file = ColumnFile.create(folder / WORK_NAME / "final.x", np.dtype("<f8"))
        ...         file.append(np.array([1.0, 2.0]))
        ...         finite = NonFinite(nan=0, inf=0, first=None)
        ...         x = ColumnEntry(name="x", level="step", kind="number", unit=None, values=file.seal(folder), texts=None, missing=0,
        ...                         nonfinite=finite)
        ...         commit(Manifest(format="stoker", version=1, digest="", num_series=1, num_steps=2, length=2, offsets=None, key=None,
        ...                         time=None, columns=[x], notes=[], sources=[]))
        ...     open_store(folder).column("x").tolist()
        [1.0, 2.0]
    """
    beside = beside or {}
    check_target(folder, sources, replace=replace, beside=beside)
    before = {folder / name: (folder / name).read_bytes() if (folder / name).is_file() else None for name in beside}

    def commit(manifest: Manifest) -> None:
        for name, data in beside.items():
            _disk.write_file(folder / name, data)
        commit_manifest(folder, manifest)
        remove_debris(folder)
        remove_work(folder)

    with _new_folders(folder), _disk.Lock(folder):
        _refuse_store(folder, replace=replace)  # another process may have made one between our check and our lock
        try:
            yield commit
        except Exception:
            # What failed leaves nothing behind. (Ctrl-C is not an Exception: its work stays, and the next pack resumes it.)
            with contextlib.suppress(DiskError):
                for path, data in before.items():
                    _disk.remove_file(path) if data is None else _disk.write_file(path, data)
                _clean_up(folder)
            raise


@contextlib.contextmanager
def _new_folders(folder: Path) -> Iterator[None]:
    """Make a folder and its parents; after an error, remove the new ones that are empty."""
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        _disk.make_folder(folder)
        yield
    except Exception:
        for path in absent:
            with contextlib.suppress(DiskError), _disk.naming(path):
                _disk.disk.rmdir(path)
        raise


def check_target(folder: Path, sources: Sequence[Path | None] = (), *, replace: bool, beside: Iterable[str] = ()) -> None:
    """Refuse a folder that a store may not be written to: it must be new, empty, or (with `replace`) a store.

    A pack that was killed may have left the files `beside`.
    """
    _disk.check_path(folder)
    with _disk.naming(folder):
        if folder.exists() and not folder.is_dir():
            raise OptionError(f"{folder} is a file, but a store is a folder. Choose another name.", path=folder)
        for source in sources:
            if source is not None and source.resolve() == folder.resolve():
                raise OptionError(f"{folder} is both the source and the store. Choose another name for the store.", path=folder)
        foreign = (
            sorted(set(_foreign(folder)) - {f"{name}{end}" for name in beside for end in ("", ".tmp")}) if folder.is_dir() else []
        )
    if foreign:
        raise OptionError(
            f"{folder} is not a store and not empty (it holds {foreign[0]!r}). Choose another folder, so that nothing is lost.",
            path=folder,
        )
    _refuse_store(folder, replace=replace)


def _refuse_store(folder: Path, *, replace: bool) -> None:
    if not replace and os.path.lexists(folder / MANIFEST_NAME):
        raise StoreExistsError(
            f"{folder} holds a store already. Choose another folder, or pass replace=True to replace that store."
        )


def _foreign(folder: Path) -> Iterator[str]:
    """Names of what Stoker did not make. Without its mark (a manifest, or a marked work folder) that is everything."""
    work = folder / WORK_NAME
    in_work: set[str] = set()
    if work.is_dir() and not work.is_symlink():
        in_work = {entry.name for entry in work.iterdir()}
        yield from (f"{WORK_NAME}/{name}" for name in in_work if not WORK_FILE.fullmatch(name))
    elif os.path.lexists(work):
        yield WORK_NAME
    try:
        read_manifest(folder)
        return  # other files beside those of a store stay
    except StoreNotFoundError:
        ours = {WORK_NAME, MANIFEST_NAME + ".tmp"}
    except ManifestError:
        ours = {WORK_NAME, MANIFEST_NAME + ".tmp", MANIFEST_NAME, PARTS_NAME, PARTS_LIST}
    # A process that was killed at its start leaves a lock file, and a work folder with at most an unfinished mark.
    names = {entry.name for entry in folder.iterdir()}
    lock = _head(folder / ".lock")
    if lock is not None and (not lock or (len(lock) < 20 and lock.isdigit())):  # it holds a process id
        names.discard(".lock")
    # A damaged manifest may still begin like one of Stoker.
    if MARK_NAME in in_work or b'"format": "stoker"' in (_head(folder / MANIFEST_NAME) or b""):
        yield from (name for name in names - ours if not SHARD_NAME.fullmatch(name))
    else:
        yield from names - ({WORK_NAME} if in_work <= {f"{MARK_NAME}.tmp"} else set())


def _head(path: Path) -> bytes | None:
    """The first bytes of a plain file, none if it does not exist; None if it cannot be read."""
    try:
        with os.fdopen(_disk.open_plain(path, StoreDamagedError), "rb") as file:
            return file.read(64)
    except FileNotFoundError:
        return b""
    except (OSError, StoreDamagedError):
        return None


def commit_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, after checking that a reader accepts it: from here on the older store is gone.

    The names of the shards are made durable first, so that a manifest never names a missing file.
    """
    data = manifests.dump(manifest)
    try:
        check_staged(folder, data)
    except (ManifestError, StoreDamagedError) as error:
        raise type(error)(f"{folder} would be a store that cannot be opened, so it was not written: {error}") from error
    with _disk.naming(folder):
        _disk.disk.sync_folder(folder)
    _disk.write_file(folder / MANIFEST_NAME, data)


def check_staged(folder: Path, data: bytes) -> None:
    """Refuse manifest bytes that `open_store` would refuse in this folder."""
    map_shards(folder, manifests.load(data, str(folder / MANIFEST_NAME)))


def _clean_up(folder: Path) -> None:
    """After an error: leave the store as it was before, or no folder at all."""
    # If the sync after the commit failed, the old manifest may come back: its shards may be removed only once it cannot.
    with _disk.naming(folder):
        _disk.disk.sync_folder(folder)
    remove_debris(folder)
    remove_work(folder)  # last, as its mark says who made the shards
    if {entry.name for entry in folder.iterdir()} <= {".lock"}:
        _disk.remove_folder(folder)


# Saving a store that is open: same columns, same series, same order.


def save_store(store: StoredColumns, folder: Path, *, note: str, replace: bool = False) -> None:
    """Write all columns to `folder`, all or nothing. `note` says where the values are from."""
    with new_store(folder, [store.path], replace=replace) as commit:
        commit(write_store(store, folder, note=note))


def write_store(store: StoredColumns, folder: Path, *, note: str) -> Manifest:
    """Write the shards of all columns to `folder`, and return the manifest to commit."""
    make_work(folder)
    notes, sources = store._origins()
    offsets = None if store.uniform_length is not None else np.ascontiguousarray(store.offsets)
    manifest = Manifest(
        format="stoker",
        version=manifests.VERSION,
        digest="",
        num_series=len(store),
        num_steps=store.num_steps,
        length=store.uniform_length,
        offsets=None if offsets is None else write_array(folder, offsets),
        key=store.key,
        time=store.time,
        columns=[_entry(folder, store, column) for column in store.schema.values()],
        notes=notes,
        sources=[SourceEntry(name=note, num_bytes=0, num_rows=store.num_steps, xxh3=None)] if sources is None else sources,
    )
    return manifests.with_fields_of(manifest, store.manifest) if store.manifest is not None else manifest


def _entry(folder: Path, store: StoredColumns, column: Column) -> ColumnEntry:
    values = None
    if column.dtype is not None:
        values = write_shard(folder, "final.column", column.dtype, column.width, store._pieces(column.name, BLOCK_BYTES))
    texts = None
    if column.texts is not None:
        texts = Text(utf8=write_array(folder, column.texts.utf8), offsets=write_array(folder, column.texts.offsets))
    return entry_of(column, values, texts, missing=column.missing, nonfinite=column.nonfinite)


def write_array(folder: Path, values: Array, name: str = "final.column") -> Shard:
    """Write an array, in parts of some megabytes, so that no more of a mapped column is in memory at once."""
    return write_shard(folder, name, values.dtype, values.shape[1] if values.ndim == 2 else None, pieces(values))


def write_shard(folder: Path, name: str, dtype: np.dtype[Any], width: int | None, parts: Iterator[Array]) -> Shard:
    """Write the rows of a column, piece by piece."""
    column = ColumnFile.create(folder / WORK_NAME / name, dtype, width)
    try:
        for part in parts:
            column.append(part)
        return column.seal(folder)
    finally:
        column.close()
