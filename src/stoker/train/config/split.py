"""The section `split`: which samples are held back, and how far apart the parts are kept."""

from __future__ import annotations

from msgspec import Struct

from stoker.train.config.data import Share, Whole


class Chronological(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="chronological"):
    """Earlier steps train, later ones validate, the last ones are kept for a test."""

    valid: Share = 0.15
    """Share of the steps that validate."""
    test: Share = 0.0
    """Share of the steps that are kept for a test, and never fed here."""
    horizon: Whole | None = None
    """Steps behind a sample of which its targets were made; by default those of the view."""
    warm_up: Whole = 0
    """Steps before a sample of which its values were made, such as those of an indicator."""
    embargo: Whole | None = None
    """Steps that samples keep from the boundary before them; by default the least that is needed."""
    time: str | None = None
    """Column of times by which to cut; by default that of the store."""


class Grouped(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="grouped"):
    """Whole series train or validate."""

    valid: Share = 0.15
    """Share of the series that validate."""
    test: Share = 0.0
    """Share of the series that are kept for a test, and never fed here."""
    by: str | None = None
    """Series with the same value of this column stay together."""


AnySplit = Chronological | Grouped
