"""Debris: what packs that were killed left in a store's folder, and what an older store leaves when it is replaced.

The law: a shard that the manifest names stays, and so does every file that no pack could have made.
"""

from __future__ import annotations

import re
from pathlib import Path

from stoker import files
from stoker.errors import ManifestInvalid, StoreNotFound
from stoker.store import manifest as manifests
from stoker.store.store import MANIFEST_NAME, read_manifest

WORK_FILE = re.compile(r"journal(\.tmp)?|(run\d+|final)\.\w+|categories\d+o?")
"""Names of the files in a work folder."""


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
