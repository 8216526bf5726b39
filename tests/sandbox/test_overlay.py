"""Overlay mounts: what they do is tested with programs in test_sandbox.py; here are the parts that need no namespace."""

from __future__ import annotations

import pytest

from stoker.sandbox import overlay


@pytest.mark.parametrize(
    ("path", "found"), [("/a", "/a"), ("/a/b/c", "/a/b"), ("/a/bc", "/a"), ("/d/e", None), ("/", None), ("/a/b", "/a/b")]
)
def test_the_innermost_folder_decides(path: str, found: str | None) -> None:
    assert overlay.innermost(path, {"/a": True, "/a/b": False}) == found
