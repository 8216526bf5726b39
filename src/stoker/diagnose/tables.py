"""The numbers of a report as tables: all that was measured, as texts, so that whoever doubts a verdict can follow it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stoker.diagnose import words
from stoker.diagnose.measurements import Loader, Machine, Measurements, Reads, Stretch, WhatIf, Work
from stoker.diagnose.picture import PHASE_TITLES

YES_NO = {True: "yes", False: "no", None: words.UNKNOWN}


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A title, the heads of columns (empty for facts: a name and a value), and rows."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    texts: int = 1
    """How many of the columns, from the left, are words; the others hold numbers."""

    @property
    def is_facts(self) -> bool:
        """Whether each row is a name and a value."""
        return not any(self.heads)


def of_measurements(measured: Measurements) -> list[Table]:
    """Every table that has rows."""
    tables = [
        Table(title="Stretches of steps", heads=("", "what ran", "a step", "spread", "steps"), rows=_stretches(measured), texts=2),
        Table(title="The program", heads=("", ""), rows=list(_program(measured)), texts=2),
        Table(title="The work of a step", heads=("", ""), rows=list(_work(measured.work)) if measured.work else [], texts=2),
        Table(
            title="Where the host waits for the device",
            heads=("place", "times a step"),
            rows=[(str(sync.place) if sync.place else words.UNKNOWN, words.count(sync.count)) for sync in measured.syncs],
        ),
        Table(
            title="Lines of the program, with what they call",
            heads=("phase", "line", "of the phase"),
            rows=[
                (PHASE_TITLES.get(phase, phase), str(blame.place), words.percent(blame.share))
                for phase, blames in measured.blames.items()
                for blame in blames
            ],
            texts=2,
        ),
        Table(
            title="A cached step by the number of threads",
            heads=("threads", "a step"),
            rows=[(threads, words.duration(seconds)) for threads, seconds in measured.fewer_threads.items()],
        ),
        Table(
            title="Steps with a fix switched on, in turn with steps as they are",
            heads=("fix", "as it is", "with it", "times faster"),
            rows=[(name, *_what_if(one)) for name, one in measured.what_ifs.items()],
        ),
        Table(
            title="The processes that train together",
            heads=("rank", "a step", "without the others"),
            rows=[(f"{one.rank}", words.duration(one.step_seconds), words.duration(one.apart_seconds)) for one in measured.ranks],
        ),
    ]
    return [table for table in tables if table.rows]


def of_machine(machine: Machine) -> Table:
    """Rates of the machine."""
    rows: list[tuple[str, ...]] = [
        ("graphics card", machine.gpu or "none"),
        ("cores, and threads of torch", f"{machine.cores:,}, {machine.threads:,}"),
        ("copy in memory", f"{words.size(machine.memcpy_bytes)}/s"),
        *((f"matrix product, {kind}", words.flops(rate, "FLOP/s")) for kind, rate in machine.matmul_flops.items()),
        ("one small operation", words.duration(machine.dispatch_seconds)),
    ]
    if machine.launch_seconds is not None:
        rows.append(("one launch of a kernel", words.duration(machine.launch_seconds)))
    rates = (
        ("to the device, pageable", machine.h2d_pageable_bytes),
        ("to the device, pinned", machine.h2d_pinned_bytes),
        ("disk", machine.disk_bytes),
    )
    rows += [(name, f"{words.size(rate)}/s") for name, rate in rates if rate is not None]
    return Table(title="The machine", heads=("", ""), rows=rows, texts=2)


def of_loader(loader: Loader) -> Table:
    """What is known of where batches come from."""
    return Table(title="The loader", heads=("", ""), rows=list(_loader(loader)), texts=2)


def _loader(loader: Loader) -> Iterator[tuple[str, str]]:
    yield "kind", loader.kind
    if loader.dataset is not None:
        yield "data set", loader.dataset
    if loader.place is not None:
        yield "read by", str(loader.place)
    yield "worker processes", f"{loader.workers:,}"
    if loader.batch_size is not None:
        yield "batch size", f"{loader.batch_size:,}"
    if loader.pinned is not None:
        yield "pinned memory", YES_NO[loader.pinned]
    if loader.bytes_read is not None:
        yield "read from files a step", words.size(loader.bytes_read)
    if loader.bytes_used is not None:
        yield "used by the model a step", words.size(loader.bytes_used)
    if loader.bytes_read is not None and loader.bytes_used and loader.bytes_read >= loader.bytes_used:
        yield "read for each byte used", words.count(loader.bytes_read / loader.bytes_used)
    if loader.reads is not None:
        yield from _reads(loader.reads)
    if loader.startup_seconds is not None:
        yield "until the first batch", words.duration(loader.startup_seconds)


def _reads(reads: Reads) -> Iterator[tuple[str, str]]:
    if reads.cache_hits is not None:
        yield "samples that read no file", words.percent(reads.cache_hits)
    if reads.reads_a_file is not None:
        yield "files that a worker read", f"{reads.files:,} for {reads.batches:,} batches"
        yield "reads of each of them", words.count(reads.reads_a_file)
    if reads.bytes_read and reads.bytes_from_disk is not None:
        yield "bytes in the system's cache", words.percent(max(0.0, 1 - reads.bytes_from_disk / reads.bytes_read))
    elif reads.bytes_from_disk:
        yield "from the disk a batch", words.size(reads.bytes_from_disk)


def _stretches(measured: Measurements) -> list[tuple[str, ...]]:
    told: tuple[tuple[str, str, Stretch | None], ...] = (
        ("T", "the loop as it is", measured.loop),
        ("C", "the loop with cached batches", measured.cached),
        ("D", "the loader alone", measured.loader_alone),
        ("X", "copies to the device alone", measured.copies_alone),
        ("H", "the host issuing a step", measured.host_issue),
        ("G", "the device alone", measured.device_alone),
    )
    return [
        (letter, what, words.duration(stretch.median), words.percent(stretch.spread), f"{len(stretch.seconds):,}")
        for letter, what, stretch in told
        if stretch is not None and stretch.seconds
    ]


def _what_if(found: WhatIf) -> tuple[str, str, str]:
    before, after = found.as_it_is.median, found.with_fix.median
    return words.duration(before), words.duration(after), words.times(before / after if after else math.nan)


def _program(measured: Measurements) -> Iterator[tuple[str, str]]:
    yield "device", measured.device
    yield "steps seen", f"{measured.steps_seen:,}"
    yield "steps over three times the median", f"{measured.slow_steps:,}"
    if measured.waited_for_cores is not None:
        yield "time in which other programs had its cores", words.percent(measured.waited_for_cores)
    yield "precision of most products", measured.precision
    if measured.optimizer is not None:
        yield "optimizer", measured.optimizer
    if measured.optimizer_fused is not None:
        yield "optimizer is fused", YES_NO[measured.optimizer_fused]
    yield "compiled", YES_NO[measured.compiled]
    if measured.blocked_under_sleep is not None:
        yield "issuing waits for the device", YES_NO[measured.blocked_under_sleep]
    if measured.losses:
        yield "first losses", ", ".join(f"{loss:.4g}" for loss in measured.losses[:5])


def _work(work: Work) -> Iterator[tuple[str, str]]:
    yield "operations", words.count(work.ops)
    if work.kernels is not None:
        yield "kernels", words.count(work.kernels)
    yield "arithmetic", words.flops(work.flops)
    if work.flops_by_dtype:
        yield "arithmetic by type", _listed({kind: words.flops(number) for kind, number in work.flops_by_dtype.items()})
    if work.h2d_copies:
        yield "copied to the device", f"{words.size(work.h2d_bytes)} in {words.count(work.h2d_copies)} copies"
    if work.peak_bytes is not None:
        yield "most memory of the device", words.size(work.peak_bytes)
    if work.shares:
        yield "time by kind", _listed({kind: words.percent(share) for kind, share in work.shares.items()})


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
