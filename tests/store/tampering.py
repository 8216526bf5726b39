"""Tampering with a store as somebody could who means harm."""

from __future__ import annotations

import json
from typing import Any

from tests.harness import TinyStore, seal_manifest


def edit_manifest(built: TinyStore, change: Any) -> None:
    """Change a manifest and seal it again, so that only the rules behind its digest can find the change."""
    path = built.path / "manifest.json"
    tree = json.loads(path.read_bytes())
    change(tree)
    path.unlink()
    path.write_bytes(seal_manifest(tree))
