"""Cached: batches cost nothing. A bound of what any fix of the data can give, not a fix."""

from __future__ import annotations

from stoker.diagnose.tries.fix import Fix


class Cached(Fix):
    """The loop gets copies of its first batches, again and again; the trial hands them out."""

    tolerance = None
    caches = True
    nothing = "the batches do not come from an iterable, so they cannot be kept"
