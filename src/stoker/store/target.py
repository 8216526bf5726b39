"""The target: the folder that a new store goes to. A store may replace a store, in one step, and never something else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stoker import files
from stoker.errors import DiskError, ManifestInvalid, OptionError, StoreNotFound
from stoker.store import manifest as manifests
from stoker.store.manifest import Manifest
from stoker.store.packing.debris import WORK_FILE, remove_debris
from stoker.store.store import MANIFEST_NAME, WORK_NAME, read_manifest


def replace_store(folder: Path, sources: Sequence[Path | None], write: Callable[[], Manifest]) -> None:
    """Have `write` make the shards of a new store in `folder`, then commit its manifest.

    Until then a store that is there stays as it was. `sources` are paths that must not be the folder itself.
    """
    with files.naming(folder):
        _refuse_target(folder, sources)
    with _new_folders(folder), files.Lock(folder):
        try:
            _commit(folder, write())
            remove_debris(folder)
            files.remove_folder(folder / WORK_NAME)
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


def _refuse_target(folder: Path, sources: Sequence[Path | None]) -> None:
    """A store may replace a store, never something else."""
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


def _foreign(folder: Path) -> Iterator[str]:
    """What a pack could not have made, but would be in its way: beside a valid manifest, only what is in the work folder."""
    work = folder / WORK_NAME
    if work.is_dir() and not work.is_symlink():
        yield from (f"{WORK_NAME}/{entry.name}" for entry in work.iterdir() if not WORK_FILE.fullmatch(entry.name))
    elif work.exists():
        yield WORK_NAME
    names = {entry.name for entry in folder.iterdir()}
    try:
        read_manifest(folder)
        return
    except StoreNotFound:
        ours = {".lock", WORK_NAME, MANIFEST_NAME + ".tmp"}
    except ManifestInvalid:
        # A damaged manifest may be replaced, but a file that only has its name may not: a store has shards.
        shards = any(files.SHARD_NAME.fullmatch(name) for name in names)
        ours = {".lock", WORK_NAME, MANIFEST_NAME + ".tmp", *([MANIFEST_NAME] if shards else [])}
    yield from (name for name in names - ours if not files.SHARD_NAME.fullmatch(name))


def _commit(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest. The shards' names are made durable first, so that a manifest never names what is not there."""
    with files.naming(folder):
        files.disk.sync_folder(folder)
    files.write_file(folder / MANIFEST_NAME, manifests.dump(manifest))


def _clean_up(folder: Path) -> None:
    """After an error: the store as it was before, or no folder at all."""
    files.remove_folder(folder / WORK_NAME)
    # If it was the sync behind the commit that failed, the old manifest may come back: its shards go only when it cannot.
    with files.naming(folder):
        files.disk.sync_folder(folder)
    remove_debris(folder)
    if {entry.name for entry in folder.iterdir()} <= {".lock"}:
        files.remove_folder(folder)
