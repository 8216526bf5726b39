"""Attacks by files from strangers: code in a pickle never runs, and no shard of a store leads out of it."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.harness import edit_manifest, tiny_store

from stoker import pack
from stoker.errors import StokerError
from stoker.store import open_store

pytestmark = pytest.mark.promise("P6")


class Payload:
    """Makes a file when it is unpickled: an attacker would do worse."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def pickles(mark: Path) -> dict[str, bytes]:
    """Files whose content is a pickle: as an array, under another name, with another type, and in an archive."""
    array = np.empty(1, dtype=object)
    array[0] = Payload(mark)
    buffer, archive = io.BytesIO(), io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    npy, raw = buffer.getvalue(), pickle.dumps(Payload(mark))
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("x.npy", npy)
    claimed = npy.replace(b"'|O'", b"'O8'")
    return {"a.npy": npy, "raw.npy": raw, "claimed.npy": claimed, "a.npz": archive.getvalue(), "raw.npz": raw}


@pytest.mark.parametrize("name", [*pickles(Path("ran")), "shard"])
def test_a_pickle_is_refused_and_does_not_run(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "ran"
    if name == "shard":
        built = tiny_store(tmp_path / "store", columns=["price"])
        shard = next(path for path in built.path.glob("*.npy") if path.stat().st_size > 128)
        shard.unlink()
        shard.write_bytes(pickles(mark)["a.npy"])
    else:
        (tmp_path / name).write_bytes(pickles(mark)[name])
    with pytest.raises(StokerError):
        open_store(tmp_path / "store") if name == "shard" else pack(tmp_path / name, tmp_path / "packed")
    assert not mark.exists()


def test_negative_control_numpy_runs_it_where_it_is_allowed_to(tmp_path: Path) -> None:
    np.load(io.BytesIO(pickles(tmp_path / "ran")["a.npy"]), allow_pickle=True)
    assert (tmp_path / "ran").exists()


NAMES = ["../secret.npy", "/etc/passwd", "./../secret.npy", "0123456789abcdef.npy/../../secret.npy", "..\\secret.npy", "/dev/zero"]
NAMES += ["secret.npy\0.npy", "", ".", "..", "%2e%2e/secret.npy", "0123456789ABCDEF.npy", "0123456789abcdef.npy\n"]
NAMES += ["0123456789abcdef.npy.tmp", "\u0660\u0661\u066223456789abcdef.npy", "\uff10123456789abcdef.npy"]


@pytest.mark.parametrize("name", NAMES)
def test_a_shard_whose_name_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.npy").write_bytes(b"\x93NUMPY a private file that lies outside of the store")
    built = tiny_store(tmp_path / "store", columns=["price"])
    edit_manifest(built.path, lambda tree: tree["columns"][0]["values"].update(file=name))
    with pytest.raises(StokerError):
        open_store(built.path).column("price")


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a link to a private file": lambda path: path.symlink_to(path.parent.parent / "secret.npy"),
    "a link to endless zeros": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a pipe without a writer": os.mkfifo,
    "a folder": Path.mkdir,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", NO_FILES)
def test_a_shard_that_is_not_a_file_is_refused(tmp_path: Path, kind: str) -> None:
    built = tiny_store(tmp_path / "store", columns=["price"])
    shard = built.path / msgspec.to_builtins(built.manifest)["columns"][0]["values"]["file"]
    shard.rename(tmp_path / "secret.npy")  # a link to it would give the right values
    NO_FILES[kind](shard)
    with pytest.raises(StokerError):
        open_store(built.path).column("price")
