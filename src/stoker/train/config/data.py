"""The section `data`: which numbers are fed, what a sample is, when it comes, and which samples are held back."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

MANY = 2**48
Whole = Annotated[int, Meta(ge=0, le=MANY)]
Count = Annotated[int, Meta(ge=1, le=MANY)]
Size = Annotated[int, Meta(ge=1, lt=2**31)]
"""Of something that is held in memory."""
Share = Annotated[float, Meta(ge=0, lt=1)]


class WindowView(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="windows"):
    """Windows of equal length."""

    length: Count
    """Steps that the model sees."""
    stride: Count = 1
    """A new window every so many steps."""
    horizon: Whole = 0
    """So many steps behind a window are predicted."""
    shift: Whole = 0
    """Each step predicts the one so many steps on; instead of a horizon."""
    tail: Literal["keep", "drop"] = "keep"
    """What becomes of a last window that is not full: padded and masked, or dropped."""


class SegmentView(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="segments"):
    """Series cut into consecutive pieces."""

    length: Count
    """Steps that the model sees."""
    horizon: Whole = 0
    """So many steps behind a segment are predicted."""
    shift: Whole = 0
    """Each step predicts the one so many steps on; instead of a horizon."""
    tail: Literal["keep", "drop"] = "keep"
    """What becomes of a last segment that is not full: padded and masked, or dropped."""


class SequenceView(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="sequences"):
    """Each series is one sample, padded to `max_length`."""

    max_length: Size
    """Longer series are cut to it."""
    buckets: Annotated[list[Size], Meta(min_length=1)] | None = None
    """Widths that batches may have; by default the one of `max_length`, so that all have one shape."""
    end: Literal["first", "last"] = "first"
    """Which end of a longer series stays."""


class SequentialOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="sequential"):
    """Samples as they are stored."""


class ShuffleOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="shuffle"):
    """Every sample once an epoch, in random order."""


class BlockOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="block"):
    """The same for data larger than memory: neighbours are read together, but come apart."""

    block: Count | None = None
    """Samples of a block; chosen by default."""
    window: Count | None = None
    """Samples that are mixed together; chosen by default."""


class LengthOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name", tag="by_length"):
    """Like a shuffle, but samples of similar length share a batch."""

    pool: Count = 100
    """Groups that are sorted by length together."""


class Data(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is fed."""

    store: str
    """Path of the store, as `stoker pack` makes it."""
    view: WindowView | SegmentView | SequenceView
    """What a sample is."""
    batch_size: Size
    """Samples of a batch, of one process."""
    columns: Annotated[list[str], Meta(min_length=1)] | None = None
    """Columns that the model sees; by default all numbers of steps, without a target that is no future."""
    target: Annotated[list[str], Meta(min_length=1)] | None = None
    """Columns that are predicted: with a horizon or shift their future, otherwise their value at the last step or of the series."""
    order: SequentialOrder | ShuffleOrder | BlockOrder | LengthOrder = ShuffleOrder()
    """Which training sample comes when; validation is sequential."""
    scale: bool | None = None
    """Centre and scale columns by the steps of the training samples, inside the model; by default, unless `normalize` is set."""
    normalize: Literal["zero", "max"] | None = None
    """Centre and scale ("zero"), or scale ("max"), each series by its own values; not with a split by time, which it would leak."""
    dtype: Literal["float32", "float64"] = "float32"
    """What columns of floats become."""
    residency: Literal["auto", "device", "host", "stream"] = "auto"
    """Where columns stay: on the device, in memory, or on disk."""
    threads: Annotated[int, Meta(ge=0, le=1024)] | None = None
    """Threads that make batches ahead; chosen by default."""
