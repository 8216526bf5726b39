"""Malloc: memory that is free stays with the process, in place of being given back to the system and asked for at each step."""

from __future__ import annotations

from stoker.diagnose.pages import keep_memory
from stoker.diagnose.tries.fix import Fix


class Malloc(Fix):
    """Two settings of glibc, which cannot be undone: it is tried, and never switched on in a program that is measured."""

    nothing = "the allocator of this process has no such setting"

    def install(self) -> None:
        """Before the program begins."""
        self.used = keep_memory()
