"""The target: the folder that a new store goes to. A store may replace a store, in one step, and never something else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stoker import files
from stoker.errors import DiskError, ManifestInvalid, OptionError, StoreDamaged, StoreExists, StoreNotFound
from stoker.store import manifest as manifests
from stoker.store.manifest import Manifest
from stoker.store.packing.debris import MARK_NAME, WORK_FILE, remove_debris, remove_work
from stoker.store.store import MANIFEST_NAME, WORK_NAME, check_staged, read_manifest


def replace_store(folder: Path, sources: Sequence[Path | None], write: Callable[[], Manifest], *, replace: bool) -> None:
    """Have `write` make the shards of a new store in `folder`, then commit its manifest.

    Until then a store that is there stays as it was; without `replace` it is an error that there is one. `sources` are paths that
    must not be the folder itself.
    """
    check_target(folder, sources, replace=replace)
    with _new_folders(folder), files.Lock(folder):
        _refuse_store(folder, replace=replace)  # another process may have made one between our check and our lock
        try:
            _commit(folder, write())
            remove_debris(folder)
            remove_work(folder)
        except Exception:
            # What failed leaves nothing behind. (Ctrl-C is no Exception: its work stays, and the next pack goes on with it.)
            with contextlib.suppress(DiskError):
                _clean_up(folder)
            raise


@contextlib.contextmanager
def _new_folders(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; after an error, the new ones that are empty go again."""
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        files.make_folder(folder)
        yield
    except Exception:
        for path in absent:
            with contextlib.suppress(DiskError), files.naming(path):
                files.disk.rmdir(path)
        raise


def check_target(folder: Path, sources: Sequence[Path | None] = (), *, replace: bool) -> None:
    """A store may go to a new or empty folder, or take the place of a store where `replace` says so; never of something else."""
    files.check_path(folder)
    with files.naming(folder):
        if folder.exists() and not folder.is_dir():
            raise OptionError(f"{folder} is a file, but a store is a folder. Choose another name.")
        for source in sources:
            if source is not None and source.resolve() == folder.resolve():
                raise OptionError(f"{folder} is both the source and the store. Choose another name for the store.")
        foreign = sorted(_foreign(folder)) if folder.is_dir() else []
    if foreign:
        raise OptionError(
            f"{folder} is no store and not empty (it holds {foreign[0]!r}). Choose another folder, so that nothing is lost."
        )
    _refuse_store(folder, replace=replace)


def _refuse_store(folder: Path, *, replace: bool) -> None:
    if not replace and os.path.lexists(folder / MANIFEST_NAME):
        raise StoreExists(f"{folder} holds a store already. Choose another folder, or pass replace=True to replace that store.")


def _foreign(folder: Path) -> Iterator[str]:
    """What Stoker did not make. In a folder without its mark (a manifest, or a work folder that it marked) that is everything."""
    work = folder / WORK_NAME
    in_work: set[str] = set()
    if work.is_dir() and not work.is_symlink():
        in_work = {entry.name for entry in work.iterdir()}
        yield from (f"{WORK_NAME}/{name}" for name in in_work if not WORK_FILE.fullmatch(name))
    elif os.path.lexists(work):
        yield WORK_NAME
    try:
        read_manifest(folder)
        return  # files beside those of a store are in nobody's way
    except StoreNotFound:
        ours = {WORK_NAME, MANIFEST_NAME + ".tmp"}
    except ManifestInvalid:
        ours = {WORK_NAME, MANIFEST_NAME + ".tmp", MANIFEST_NAME}
    # What a process that was killed at its begin leaves: a lock file, and a work folder with nothing in it but a mark under way.
    names = {entry.name for entry in folder.iterdir()}
    names -= {".lock"} if _is_lock(folder / ".lock") else set()
    if MARK_NAME in in_work or _names_stoker(folder / MANIFEST_NAME):
        yield from (name for name in names - ours if not files.SHARD_NAME.fullmatch(name))
    else:
        yield from names - ({WORK_NAME} if in_work <= {f"{MARK_NAME}.tmp"} else set())


def _names_stoker(manifest: Path) -> bool:
    """Whether a damaged manifest still begins as one of ours does."""
    try:
        with os.fdopen(files.open_plain(manifest, ManifestInvalid), "rb") as file:
            return b'"format": "stoker"' in file.read(64)
    except (OSError, ManifestInvalid):
        return False


def _is_lock(path: Path) -> bool:
    """Whether a file could be a lock of ours: it is empty, holds the number of a process, or is gone with that process."""
    try:
        with os.fdopen(files.open_plain(path, StoreDamaged), "rb") as file:
            found = file.read(32)
    except FileNotFoundError:
        return True
    except (OSError, StoreDamaged):
        return False
    return not found or (len(found) < 20 and found.isdigit())


def _commit(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, by one that was read as a reader will read it: from here on the older store is gone.

    The shards' names are made durable first, so that a manifest never names what is not there.
    """
    data = manifests.dump(manifest)
    try:
        check_staged(folder, data)
    except (ManifestInvalid, StoreDamaged) as error:
        raise type(error)(f"{folder} would be a store that cannot be opened, so it was not written: {error}") from error
    with files.naming(folder):
        files.disk.sync_folder(folder)
    files.write_file(folder / MANIFEST_NAME, data)


def _clean_up(folder: Path) -> None:
    """After an error: the store as it was before, or no folder at all."""
    # If it was the sync behind the commit that failed, the old manifest may come back: its shards go only when it cannot.
    with files.naming(folder):
        files.disk.sync_folder(folder)
    remove_debris(folder)
    remove_work(folder)  # last, as its mark says whose the shards are
    if {entry.name for entry in folder.iterdir()} <= {".lock"}:
        files.remove_folder(folder)
