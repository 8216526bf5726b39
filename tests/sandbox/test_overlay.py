"""Overlay mounts: what they do is tested with programs in test_sandbox.py; here are the parts that need no namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.sandbox import overlay


@pytest.mark.parametrize(
    ("path", "found"), [("/a", "/a"), ("/a/b/c", "/a/b"), ("/a/bc", "/a"), ("/d/e", None), ("/", None), ("/a/b", "/a/b")]
)
def test_the_innermost_folder_decides(path: str, found: str | None) -> None:
    assert overlay.innermost(path, {"/a": True, "/a/b": False}) == found


def test_mount_points_have_their_names_and_whether_they_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "36 35 98:0 / / rw,noatime shared:1 - ext4 /dev/root rw\n"
        "37 35 98:1 / /mnt/my\\040disk ro,nosuid - xfs /dev/sdb ro\n"
        "38 35 98:2 / /data rw - nfs server:/data rw\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda self, **given: text)
    assert overlay.mount_points() == {"/": True, "/mnt/my disk": False, "/data": True}
