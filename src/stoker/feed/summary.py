"""Summary: what `print(feed)` says, including why things are as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.order.sequences import Sequences
from stoker.units import readable_bytes

if TYPE_CHECKING:
    from stoker.feed.feed import Feed


def summarize(feed: Feed) -> str:
    """A few lines."""
    steps = "steps" if isinstance(feed.view, Sequences) else f"{feed.samples.row}"
    shapes = []
    for column in feed.columns:
        width = "" if column.width is None else f", {column.width}"
        rows = "steps" if feed.is_packed else f"{feed.batch_size}, {steps}"
        shapes.append(f"{column.name} {column.torch_name}[{rows if column.level == 'step' else feed.batch_size}{width}]")
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
