"""The fix `malloc`: freed memory stays with the process."""

from __future__ import annotations

from stoker.diagnose.experiments.base import Fix
from stoker.diagnose.hardware import keep_memory


class Malloc(Fix):
    """Freed memory stays with the process: two settings of glibc, which cannot be undone."""

    unused_reason = "the allocator of this process has no such setting"
    with_data = True
    lasts = True

    def install(self) -> None:
        self.used = keep_memory()
