"""Names of shards: a name that leads out of the store is refused before a file is opened."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from stoker.errors import StoreDamagedError
from stoker.store import shards

HOSTILE_NAMES = [
    "",
    "..",
    "/etc/passwd",
    "../../etc/passwd",
    "../0123456789abcdef.npy",
    "a/0123456789abcdef.npy",
    "0123456789abcdef.npy/..",
    "0123456789abcdef.npy\n",
    "0123456789abcdef.npy\0",
    "0123456789abcdef.npy ",
    "0123456789ABCDEF.npy",
    "0123456789abcdef0.npy",
    "0123456789abcdef.NPY",
    "0123456789abcdef",
    "0123456789abcdef.npy.tmp",
    "\u0660\u0661\u066223456789abcdef.npy",
    "\uff10123456789abcdef.npy",
    "..\\0123456789abcdef.npy",
    "file:0123456789abcdef.npy",
    "\ud800123456789abcdef.npy",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_name_is_refused_before_it_is_opened(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
    with pytest.raises(StoreDamagedError, match="shard name"):
        shards.open_inside(tmp_path, name)


def test_negative_control_without_the_name_check_a_name_leads_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "store").mkdir()
    monkeypatch.setattr(shards, "SHARD_NAME", re.compile(".*"))
    fd = shards.open_inside(tmp_path / "store", "../secret")
    assert os.read(fd, 9) == b"secret"
    os.close(fd)
