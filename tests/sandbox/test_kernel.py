"""Calls of the kernel: what mounts there are, and how a call fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.sandbox import kernel


def test_mount_points_have_their_names_and_whether_they_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "36 35 98:0 / / rw,noatime shared:1 - ext4 /dev/root rw\n"
        "37 35 98:1 / /mnt/my\\040disk ro,nosuid - xfs /dev/sdb ro\n"
        "38 35 98:2 / /data rw - nfs server:/data rw\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda self, **given: text)
    assert {mount.path: mount.writable for mount in kernel.mounts()} == {"/": True, "/mnt/my disk": False, "/data": True}


def test_a_call_that_fails_says_which_and_why() -> None:
    with pytest.raises(OSError, match=r"umount2: "):
        kernel.call("umount2", b"/nowhere", 0)
