"""Summary: what `print(feed)` says, including why things are as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoker.feed.layout import COMPAT_ENTRIES
from stoker.order.sequences import Sequences
from stoker.units import readable_bytes

if TYPE_CHECKING:
    from stoker.feed.columns import FedColumn
    from stoker.feed.feed import Feed


def summarize(feed: Feed) -> str:
    """A few lines."""
    shapes = [shape for column in feed.columns for shape in _shapes(feed, column)]
    size = feed.batch_size * feed._row_bytes
    most = "up to " if isinstance(feed.view, Sequences) else ""
    lines = [
        f"feed of {feed.store.name}: {feed.view}",
        f"  samples    {feed.num_samples:,} of {len(feed.store):,} series",
        f"  batches    {len(feed):,} of {feed.batch_size:,}{_ranks(feed)}{_last(feed)}",
        f"  a batch    {', '.join(shapes)}: {most}{readable_bytes(size)}",
        f"  order      {feed.plan.describe()}",
        f"  residency  {feed.residency.where}: {feed.residency.reason}",
        f"  threads    {_threads(feed)}",
    ]
    return "\n".join(lines + [f"  note       {note}" for note in feed.samples.notes()])


def _shapes(feed: Feed, column: FedColumn) -> Iterator[str]:
    """The entries of a batch that a column becomes."""
    view, rows = feed.view, feed.batch_size
    width = "" if column.width is None else f", {column.width}"
    if column.level == "series":
        yield f"{column.name} {column.torch_name}[{rows}{width}]"
    elif isinstance(view, Sequences):
        yield f"{column.name} {column.torch_name}[{'' if feed.is_packed else f'{rows}, '}steps{width}]"
    elif view.compat:
        yield from (f"{name} {kind}[{rows}, {view.length}]" for name, kind in COMPAT_ENTRIES.items())
    else:
        yield f"{column.name} {column.torch_name}[{rows}, {view.length}{width}]"
        if view.horizon or view.shift:
            yield f"{column.name}_target [{rows}, {view.horizon or view.length}{width}]"


def _threads(feed: Feed) -> str:
    return f"{feed.threads}, {feed.depth} batches ahead" if feed.threads else "none: batches are made when asked for"


def _ranks(feed: Feed) -> str:
    world = feed.ranks.world_size
    return "" if world == 1 else f" on each of {world} ranks (this is rank {feed.ranks.rank})"


def _last(feed: Feed) -> str:
    rest = feed.num_samples % (feed.batch_size * feed.ranks.world_size)
    if not rest:
        return ""
    samples = "1 sample" if rest == 1 else f"{rest:,} samples"
    if feed.last == "drop":
        return f"; the last {samples} of an epoch {'is' if rest == 1 else 'are'} dropped"
    mask = "loss_masks" if getattr(feed.view, "compat", None) else "valid"
    end = f"the others are masked by `{mask}`" if feed.last == "mask" else "it is shorter"
    return f"; the last one has {samples}, {end}"
