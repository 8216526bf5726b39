"""Debris: what packs that were killed left in a store's folder, and what an older store leaves when it is replaced.

The law: a shard that the manifest names stays, and so does every file that no pack could have made.
"""

from __future__ import annotations

import re
from pathlib import Path

from stoker import files
from stoker.errors import ManifestInvalid, StoreNotFound
from stoker.store import manifest as manifests
from stoker.store.store import MANIFEST_NAME, WORK_NAME, read_manifest

WORK_FILE = re.compile(r"(journal|mark)(\.tmp)?|(run\d+|final)\.\w+|categories\d+o?")
"""Names of the files in a work folder."""
MARK_NAME = "mark"
"""The file in a work folder that says that Stoker made it, and what has the names of shards beside it. There before all of them."""
_LATE = ("journal", MARK_NAME)  # what goes last: with a journal the same pack may finish what it began


def make_work(folder: Path) -> None:
    """An empty, marked work folder in the folder of a store."""
    remove_work(folder)
    files.make_folder(folder / WORK_NAME)
    files.write_file(folder / WORK_NAME / MARK_NAME, b"a pack of Stoker\n")


def remove_work(folder: Path) -> None:
    """Remove the work folder, its mark last."""
    work = folder / WORK_NAME
    entries = sorted(work.iterdir()) if work.is_dir() and not work.is_symlink() else []
    for entry in sorted(entries, key=lambda entry: _LATE.index(entry.name) + 1 if entry.name in _LATE else 0):
        files.remove_folder(entry)
    files.remove_folder(work)


def remove_debris(folder: Path) -> None:
    """Remove shards that the manifest does not name; all stay if the manifest cannot say which."""
    try:
        named = {shard.file for shard in manifests.shards(read_manifest(folder))}
    except StoreNotFound:
        named = set()
    except ManifestInvalid:
        return
    for entry in sorted(folder.iterdir()):
        if files.SHARD_NAME.fullmatch(entry.name) and entry.name not in named:
            files.remove_file(entry)
    files.remove_file(folder / (MANIFEST_NAME + ".tmp"))
