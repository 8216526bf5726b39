"""`stoker order`: measure how well an order shuffles and what it costs to read; recommend a block and a window."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from stoker._text import printable, readable_bytes
from stoker.cli import command as base
from stoker.errors import OptionError

if TYPE_CHECKING:
    from rich.table import Table

    from stoker.sampling.orders import Order, Plan
    from stoker.sampling.shuffle_quality import DiskReads, Quality
    from stoker.sampling.views import Samples, Segments, Sequences, Windows

COUNT = click.IntRange(min=1, max=2**40)
VIEW_SYNTAX = "windows:48  windows:48,stride=4,horizon=1  segments:2048  sequences:512"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the command prints."""

    store: str
    view: str
    samples: Samples
    sample_bytes: float
    batch_size: int
    plans: Mapping[str, Plan]
    qualities: Mapping[str, Quality]
    reads: Mapping[str, DiskReads]
    enough: tuple[int, int]
    """Block and window that reach the required effective batch size."""
    chosen: str

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        from stoker.sampling.orders import WORTH

        orders = {
            name: {**plan.shape, "description": plan.describe()}
            | {"quality": self.qualities[name].to_dict(), "reads": self.reads[name].to_dict()}
            for name, plan in self.plans.items()
        }
        sizes = {"num_samples": self.samples.num_samples, "sample_bytes": self.sample_bytes, "batch_size": self.batch_size}
        enough = {"worth": WORTH, "block": self.enough[0], "window": self.enough[1]}
        return {"path": self.store, "view": self.view, **sizes, "order": self.chosen, "orders": orders, "enough": enough}


@click.command("order", cls=base.Command, doing="measuring orders of {store}")
@click.argument("store", type=base.PATH)
@base.choice_option(
    "--order",
    "chosen",
    choices=["sequential", "shuffle", "block"],
    default="block",
    help="The order to measure. The others are shown for comparison.",
)
@click.option(
    "--batch-size", "--batch", "batch", type=COUNT, metavar="N", default=256, show_default=True, help="Batch size, over all ranks."
)
@click.option("--block", type=COUNT, metavar="N", help="Samples per block. [default: automatic]")
@click.option("--window", type=COUNT, metavar="N", help="Samples that are shuffled together. [default: automatic]")
@click.option("--view", metavar="VIEW", help="What a sample is, as KIND:LENGTH,NAME=VALUE,… [default: one series]")
@click.option("--columns", metavar="A,B,…", help="Columns to feed. [default: all numeric columns]")
@base.seed_option(0, "Seed of the order.")
@base.json_option
def command(
    store: str, chosen: str, batch: int, block: int | None, window: int | None, view: str | None, columns: str | None, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Measure the order of the samples of STORE.

    If neighbours in the store are similar, a weak shuffle puts similar samples into one batch, and its gradient is as noisy as
    that of a smaller batch. The effective batch size is the size of that smaller batch. Reads are counted for data larger than
    memory. The command reads only the lengths of the series.

    \b
    stoker order events.stoker --batch-size 256
    stoker order events.stoker --block 64 --window 16384
    stoker order prices.stoker --view windows:48,stride=4,horizon=1 --order shuffle
    stoker order prices.stoker --view segments:2048
    """
    from stoker.sampling.orders import BlockShuffle

    if chosen != "block" and (block or window):
        raise OptionError(f"--block and --window are for --order block, but --order is {chosen}.")
    report = _examine(store, view, columns, batch, BlockShuffle(seed, block, window), chosen)
    if as_json:
        click.echo(json.dumps(report.to_dict()))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    samples = f"{report.samples.num_samples:,} samples of {readable_bytes(report.sample_bytes)}"
    console.print(Text(f"{printable(report.store)}: {samples} ({report.view}), batches of {batch:,}", style="bold"))
    for note in report.samples.notes():
        console.print(Text(f"note: {note}"))
    console.print("", _table(report), sep="\n")
    for line in _advice(report):
        console.print(Text(line))


def _examine(path: str, view: str | None, columns: str | None, batch_size: int, blocks: Order, chosen: str) -> Report:
    from stoker.feed.columns import choose_columns, lengths_of
    from stoker.sampling.orders import Sequential, Shuffle, choose
    from stoker.sampling.shuffle_quality import count_reads, measure
    from stoker.sampling.views import Sequences
    from stoker.store.versions import open_store

    store = open_store(path)
    chosen_view = parse_view(view) if view else Sequences(max(1, store.num_steps))
    lengths = lengths_of(store, chosen_view)
    names = [name.strip() for name in columns.split(",")] if columns else None
    fed = choose_columns(store, names, dtype=None, normalize=None, compat=False, lengths=lengths)
    samples = chosen_view.over(lengths)
    if not samples.num_samples:
        raise OptionError(f"{path} has no sample of {view or 'a whole series'}. {' '.join(samples.notes())}".strip())
    sample_bytes = sum(column.values.nbytes for column in fed) / samples.num_samples
    step_bytes = [column.values.dtype.itemsize * (column.width or 1) for column in fed if column.level == "step"]
    orders: dict[str, Order] = {"sequential": Sequential(), "shuffle": Shuffle(blocks.seed), "block": blocks}
    plans = {name: order.over(samples, batch_size=batch_size, sample_bytes=sample_bytes) for name, order in orders.items()}
    return Report(
        store=path,
        view=view or "one per series",
        samples=samples,
        sample_bytes=sample_bytes,
        batch_size=batch_size,
        plans=plans,
        qualities={name: measure(plan, batch_size=batch_size) for name, plan in plans.items()},
        reads={name: count_reads(plan, samples, batch_size=batch_size, step_bytes=step_bytes) for name, plan in plans.items()},
        enough=choose(batch_size, sample_bytes, block=None, window=None),
        chosen=chosen,
    )


def parse_view(text: str) -> Windows | Segments | Sequences:
    """A view from KIND:LENGTH,NAME=VALUE,…"""
    from stoker.sampling.views import Segments, Sequences, Windows

    kinds: dict[str, Any] = {"windows": Windows, "segments": Segments, "sequences": Sequences}
    kind, _, rest = text.partition(":")
    length, *options = rest.split(",")
    if kind not in kinds or not length.isdecimal():
        raise OptionError(f"--view is {text!r}; expected KIND:LENGTH with options behind it, such as {VIEW_SYNTAX}.")
    known = [field.name for field in fields(kinds[kind])[1:] if field.name not in ("layout", "buckets")]
    values: dict[str, int | str] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in known or not value:
            raise OptionError(f"--view has {option!r}; {kind} take {', '.join(f'{name}=…' for name in known)}.")
        values[name] = int(value) if value.isdecimal() else value
    view: Windows | Segments | Sequences = kinds[kind](int(length), **values)
    return view


def _table(report: Report) -> Table:
    """A column for each order, a row for each property."""
    table = base.new_table()
    table.add_column("", no_wrap=True)
    for name in report.plans:
        table.add_column(name, justify="right", style="bold" if name == report.chosen else None)

    def row(label: str, value: Callable[[str], str]) -> None:
        table.add_row(label, *map(value, report.plans))

    qualities, reads = report.qualities, report.reads
    row("effective batch size", lambda name: f"{qualities[name].effective_batch_size:,.0f} of {report.batch_size:,}")
    row("  as a share", lambda name: f"{qualities[name].worth:.{0 if qualities[name].worth >= 0.1 else 1}%}")
    for run in qualities[report.chosen].variance_ratios:
        label = "variance of a batch mean" if run == 1 else f"  of {run} batches in a row"
        row(label, lambda name, run=run: f"x {_short(qualities[name].variance_ratios[run])}")  # type: ignore[misc]
    row("spread inside a batch", lambda name: f"{qualities[name].spread:.2f}")
    table.add_section()
    row("reads per batch", lambda name: _short(reads[name].reads_per_batch))
    row("bytes per read", lambda name: readable_bytes(reads[name].bytes_per_read))
    row("bytes read per byte used", lambda name: _short(reads[name].amplification))
    row("held at once", lambda name: readable_bytes(reads[name].unit_bytes))
    return table


def _short(number: float) -> str:
    return "< 0.01" if 0 < number < 0.01 else f"{number:.2f}" if number < 10 else f"{number:,.0f}"


def _advice(report: Report) -> list[str]:
    """What the chosen order is, whether it is good enough, and what would be."""
    from stoker.sampling.orders import WORTH

    quality, plan = report.qualities[report.chosen], report.plans[report.chosen]
    where = f" where {quality.worst_group:,} neighbours are alike" if quality.worst_group > 1 else ""
    verdict = "less than" if quality.worth < WORTH else "at least"
    block, window = report.enough
    enough = f"blocks of {block:,} in windows of {window:,} samples ({readable_bytes(window * report.sample_bytes)})"
    if window >= report.samples.num_samples:
        enough = f"one window of all samples ({readable_bytes(report.samples.num_samples * report.sample_bytes)})"
    return [
        f"order: {plan.describe()}.",
        f"A batch of {report.batch_size:,} is worth {quality.effective_batch_size:,.0f}{where}: {verdict} {WORTH:.0%} of itself.",
        f"Enough for {WORTH:.0%}: {enough}, which BlockShuffle() takes by itself.",
    ]
