"""What messages and `print(feed)` say: the samples of a batch, and the choices of a feed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stoker._text import readable_bytes
from stoker._types import Array
from stoker.feed.columns import SHOWN, FedColumn, first_non_finite
from stoker.feed.remote_blocks import LeasedColumns
from stoker.sampling.views import Draw, Samples, Sequences


def describe_samples(
    samples: Samples,
    columns: list[FedColumn],
    numbers: Array,
    *,
    name: str,
    first_steps: Array,
    first: int,
    draw: Draw | None = None,
) -> tuple[bool, str]:
    """The samples with non-finite values, or (where there are none) the first ones; and whether there are such.

    `first_steps` is where each series begins, `first` the index of the first sample of the store.
    """
    where = samples.locate(numbers, draw)
    rows = list(zip(numbers.tolist(), where.series.tolist(), where.starts.tolist(), where.counts.tolist(), strict=True))
    with LeasedColumns(columns, samples).lease(where):
        bad = [(row, value) for row in rows if (value := first_non_finite(columns, row)) is not None]
    if bad:
        lines = [
            f"sample {number + first:,}: {column} of series {series:,} is {value} at step {step - int(first_steps[series]):,}"
            for (number, series, _, _), (column, step, value) in bad[:SHOWN]
        ]
        return True, f"{'; '.join(lines)}{'; …' if len(bad) > SHOWN else ''} in {name}"
    lines = []
    for number, series, start, count in rows[:SHOWN]:
        begin = start - int(first_steps[series])
        lines.append(f"{number + first:,} (series {series:,}, steps {begin:,} to {begin + count - 1:,})")
    return False, f"samples {', '.join(lines)}{', …' if len(rows) > SHOWN else ''} of {name}"


def summarize(feed: Any) -> str:
    """What print(feed) shows, with the reasons for what was chosen automatically."""
    shapes = [shape for column in feed.columns for shape in _shapes(feed, column)]
    size = feed.batch_size * sum(column.unit * (feed.samples.row if column.level == "step" else 1) for column in feed.columns)
    most = "up to " if isinstance(feed.view, Sequences) else ""
    world = feed.ranks.world_size
    ranks = "" if world == 1 else f" on each of {world} ranks (this is rank {feed.ranks.rank})"
    if feed.global_batch_size is not None:
        ranks += f", {feed.micro_batches:,} {'batch' if feed.micro_batches == 1 else 'batches'} of all ranks per update"
    threads = f"{feed.threads}, {feed.prefetch} batches ahead" if feed.threads else "none: batches are made when asked for"
    lines = [
        f"feed of {feed.store.name}: {feed.view}",
        f"  samples    {feed.num_samples:,} of {len(feed.store):,} series",
        f"  batches    {len(feed):,} of {feed.batch_size:,}{ranks}{_last(feed)}",
        f"  a batch    {', '.join(shapes)}: {most}{readable_bytes(size)}",
        f"  order      {feed.plan.describe()}",
        f"  residency  {feed.residency.where}: {feed.residency.reason}",
        f"  threads    {threads}",
    ]
    scaled = [column.name for column in feed.columns if column.scaled_by == "scaler"]
    lines += [f"  scaled     {', '.join(scaled)}: each series by its training steps"] if scaled else []
    return "\n".join(lines + [f"  note       {note}" for note in feed.samples.notes()])


def _shapes(feed: Any, column: FedColumn) -> Iterator[str]:
    """The entries of a batch that a column becomes; of masks the names alone."""
    if column.observed:
        yield f"{column.name}_observed"
    view, rows = feed.view, feed.batch_size
    width = "" if column.width is None else f", {column.width}"
    if column.level == "series":
        yield f"{column.name} {column.torch_name}[{rows}{width}]"
    elif isinstance(view, Sequences):
        yield f"{column.name} {column.torch_name}[{'' if feed.is_packed else f'{rows}, '}steps{width}]"
    else:
        yield f"{column.name} {column.torch_name}[{rows}, {view.length}{width}]"
        if view.horizon or view.shift:
            yield f"{column.name}_target [{rows}, {view.horizon or view.length}{width}]"


def _last(feed: Any) -> str:
    rest = feed.num_samples % (feed.global_batch_size or feed.batch_size * feed.ranks.world_size)
    if not rest:
        return ""
    samples = "1 sample" if rest == 1 else f"{rest:,} samples"
    if feed.drop_last:
        return f"; the last {samples} of an epoch {'is' if rest == 1 else 'are'} dropped"
    if feed.global_batch_size is not None:
        return f"; the last update of an epoch has {samples}"
    end = "its other rows are padding (False in `valid`)" if feed.last_batch == "pad" else "it is shorter"
    return f"; the last one has {samples}, {end}"
