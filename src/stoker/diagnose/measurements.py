"""Measurements: what was measured of a training, each number from its own clean stretch of steps. A verdict is a function of them.

Times are seconds a step. The letters are those of the method: T the loop as it is, D the loader alone, X copies alone, C cached
batches, H the host's issue time, G the device alone.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Literal

import msgspec

Device = Literal["cpu", "cuda"]
SE_OF_MEDIAN = 1.2533 / 0.6745
"""The standard error of a median, in half distances of quartiles over the root of the number of steps, were they normal."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the steps of one stretch, or of several of its kind."""

    seconds: list[float]
    pieces: list[int] = []
    """How many of them were measured in a row; between pieces the machine may have changed its speed. Empty: all."""

    @property
    def median(self) -> float:
        """The time of a step, whatever a few slow ones took."""
        return statistics.median(self.seconds) if self.seconds else float("nan")

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a share of the median; each step against those measured in a row with it."""
        if len(self.seconds) < 4 or not self.median:
            return float("inf")
        relative = [seconds / middle for piece, middle in self._by_piece() for seconds in piece if middle]
        low, _, high = statistics.quantiles(relative, n=4)
        return (high - low) / 2

    @property
    def drift(self) -> float:
        """How much faster the fastest piece is than the slowest, as a share."""
        medians = [middle for piece, middle in self._by_piece() if len(piece) > 1]
        return max(medians) / min(medians) - 1 if medians and min(medians) > 0 else 0.0

    @property
    def tail(self) -> float:
        """How far the mean is from the median, as a share of it; each piece for itself."""
        found = [sum(piece) / middle for piece, middle in self._by_piece() if middle]
        return sum(found) / len(self.seconds) - 1 if found else 0.0

    def _by_piece(self) -> list[tuple[list[float], float]]:
        begin, found = 0, []
        for number in self.pieces or [len(self.seconds)]:
            piece = self.seconds[begin : begin + number]
            begin += number
            if piece:
                found.append((piece, statistics.median(piece)))
        return found

    @property
    def error(self) -> float:
        """The standard error of the median, as a share of it, were times normal."""
        return SE_OF_MEDIAN * min(1.0, self.spread) / math.sqrt(max(1, len(self.seconds)))


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code, and the share of a phase that was spent in it (also in what it calls)."""

    place: SourceLine
    share: float


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """A place where the host waits for the device."""

    place: SourceLine | None
    count: float
    """Times a step."""


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """How the host's time of a step, in the loop as it is, divides. On a CPU this is all of it."""

    next: float
    """Waiting for the iterable to give a batch."""
    prepare: float
    """From the batch to the first forward of a module: slicing, stacking, copies to a device."""
    forward: float
    """To the beginning of the backward pass, the loss included."""
    backward: float
    optimizer: float
    rest: float
    """After the optimizer's step: logging, metrics, what the loop does besides."""


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker reads, counted while it made some batches."""

    batches: int
    """That were looked at."""
    samples: int
    """That were asked for; batches, where a data set gives whole ones."""
    cache_hits: float | None = None
    """Share of samples that took no read of a file, because the program had kept what it needed; None where none ever does."""
    files: int = 0
    """Different ones, as far as their names are known."""
    reads: float = 0.0
    """Of files, a batch; a file counts once for a sample."""
    reads_a_file: float | None = None
    """How often the worker read each file for these batches; None where no file is known."""
    bytes_read: float | None = None
    """A batch, by calls; files that are mapped into memory do not count. None where the system does not tell."""
    bytes_from_disk: float | None = None
    """A batch: what the system did not have in its own cache, mapped files and what it reads ahead included."""


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of where batches come from."""

    kind: str
    """`DataLoader`, the class of an iterable, or `loop` where batches are made in the loop itself."""
    workers: int = 0
    pinned: bool | None = None
    batch_size: int | None = None
    dataset: str | None = None
    place: SourceLine | None = None
    """Where the loop over it stands."""
    stages: dict[str, float] = {}
    """Share of the loader's time by stage: read, decode, transform, collate, other."""
    functions: list[Blame] = []
    bytes_read: float | None = None
    """From files, a step; None where it cannot be told."""
    bytes_used: float | None = None
    """Of tensors that reach the model, a step."""
    startup_seconds: float | None = None
    """Until the first batch."""
    reads: Reads | None = None
    """What one worker reads; None where batches could not be made for that."""
    persistent: bool | None = None
    """Whether its worker processes stay from epoch to epoch; None without any."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of THIS machine, measured before the training; None where there is no such thing."""

    cores: int
    threads: int
    """That torch uses within an operation."""
    gpu: str | None = None
    memcpy_bytes: float
    """A second, read and written."""
    matmul_flops: dict[str, float]
    """A second, by type: fp32, and where there are such tf32, bf16, fp16."""
    dispatch_seconds: float
    """The host's cost of one small operation."""
    page_seconds: float | None = None
    """What it takes to get a page of memory from the system, until it has been written to; None where nobody measured it."""
    launch_seconds: float | None = None
    h2d_pageable_bytes: float | None = None
    h2d_pinned_bytes: float | None = None
    disk_bytes: float | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a step does, counted once on a cached batch."""

    ops: float
    """Operations that torch dispatches (aten)."""
    kernels: float | None = None
    flops: float
    flops_by_dtype: dict[str, float] = {}
    h2d_bytes: float = 0.0
    h2d_copies: float = 0.0
    moved_bytes: float | None = None
    """Of tensors that elementwise operations, reductions and copies read and wrote, those of the optimizer left out."""
    peak_bytes: int | None = None
    """Of device memory."""
    shares: dict[str, float] = {}
    """Of the time of a step (CPU) or its kernels (GPU) by class: gemm, elementwise, reduce, search, copy, optimizer, other; on a CPU
    also other_ops and python."""
    device_seconds: float | None = None
    """The GPU was busy for so long, uploads left out: G where a step cannot be issued while the GPU sleeps."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Steps with a fix switched on, in turn with steps without it; batches cost nothing in both, where they can be replaced.

    With another number of threads they cost what they cost; and `feed` has batches gathered at once against such that cost nothing.
    """

    as_it_is: Stretch
    with_fix: Stretch
    at_best: float | None = None
    """Seconds of a step with the fix, were the host as fast as before its kernels were profiled; None where it was, or is not what
    a step waits for."""


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One process of several that train together: seconds of its steps."""

    rank: int
    step_seconds: float
    apart_seconds: float
    """Without the exchange with the others: what it takes by itself."""
    exchange_seconds: float | None = None
    """What the exchange adds where all begin it at the same time; None where they could not be made to."""
    waited_for_cores: float | None = None
    """Of the time of these steps without the exchange: ready to run, and others had its core. None where it cannot be told."""


class RareSteps(msgspec.Struct, frozen=True, kw_only=True):
    """What comes now and then and takes far longer than a step: a checkpoint, a validation, an upload."""

    share: float
    """Of all time: what it takes longer than other steps."""
    every: float | None = None
    """Steps from one to the next; None where it was seen once."""
    seconds: float
    """Of one such step, or of what passes between two epochs."""
    others: float
    """Of the other steps."""
    between_epochs: bool = False
    """Whether it is not in a step, but between two epochs."""
    phase: str | None = None
    """Of the step, in which most of this time is; None where it was not looked into."""
    alone: bool = False
    """Whether other steps spend next to nothing at that line."""
    place: SourceLine | None = None
    """The line that has most of this time; of a library, where it does what other steps do not."""
    called: SourceLine | None = None
    """The line of the user's that called the function of this one."""


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """All that the verdict is made of."""

    device: Device
    steps_seen: int
    loop: Stretch
    """T."""
    wall_seconds: float | None = None
    """Of a step by the wall clock: the mean of T over whole periods of rare steps, and with what passes between epochs."""
    rare: RareSteps | None = None
    """The rare steps that hold most of the time; None where there are none."""
    phases: Phases
    cached: Stretch | None = None
    """C, within the user's loop; None where its iterable cannot be replaced."""
    loader_alone: Stretch | None = None
    """D."""
    copies_alone: Stretch | None = None
    """X."""
    host_issue: Stretch | None = None
    """H; None without a GPU."""
    device_alone: Stretch | None = None
    """G."""
    device_phases: dict[str, float] = {}
    """G divided: forward, backward, optimizer."""
    blocked_under_sleep: bool | None = None
    """Whether issuing a step took as long as the work that was queued before it: the step waits for the device."""
    cores_used: float | None = None
    """By steps of C (T where there is no C) on average, with threads that wait for others without sleeping."""
    pages: dict[str, list[float]] = {}
    """Of memory, that a step got from the system: by kind of stretch (`loop`, `cached`), for each one. A process that gives memory
    back gets it again at the next step, and how much it gives back differs from process to process."""
    fewer_threads: dict[str, float] = {}
    """Seconds of a cached step by the number of torch's threads."""
    syncs: list[Sync] = []
    blames: dict[str, list[Blame]] = {}
    """Lines of the user's code by phase (next, prepare, forward, backward, optimizer, rest), the largest share first."""
    loader: Loader
    work: Work | None = None
    machine: Machine
    precision: str = "fp32"
    """In which most products were computed: fp32, tf32, bf16, fp16."""
    optimizer: str | None = None
    optimizer_fused: bool | None = None
    what_ifs: dict[str, WhatIf] = {}
    """By the name of a fix that can be switched on and off while the program runs."""
    measuring_seconds: float = 0.0
    """From the end of the first step until all this was known."""
    ranks: list[Rank] = []
    """The processes of a training of several, the one that all else was measured of being the first; empty where it is one."""
    waited_for_cores: float | None = None
    """Of the time of T: some thread was ready to run, and others had its core; None where the system does not tell."""
    compiled: bool = False
    between_epochs: dict[str, float] = {}
    """Share of all time, between one epoch and the next: `loader`, until it gives again (in T, too), and `other` (in no step)."""
    slow_steps: int = 0
    """Steps that took more than three times the median (collections of garbage, logging, checkpoints)."""
    notes: list[str] = []
    losses: list[float] = []

    def for_pages(self, *kinds: str) -> list[float]:
        """Seconds of a step that go into memory from the system, in each stretch of these kinds."""
        cost = self.machine.page_seconds or 0.0
        return [cost * number for kind in kinds for number in self.pages.get(kind, [])]


# The finding: verdict, why and next, as one object for people and programs; its JSON form is told in docs/diagnosing.md.

SCHEMA: Literal[1] = 1
Verdict = Literal[
    "data",
    "transfer",
    "sync",
    "host",
    "launch",
    "optimizer",
    "compute",
    "precision",
    "memory",
    "kernel",
    "dispatch",
    "oversubscribed",
    "straggler",
    "communication",
    "none",
]
Confidence = Literal["high", "medium", "low"]
Losses = Literal["equal", "within tolerance", "changed", "not compared"]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that holds a training back."""

    verdict: Verdict
    share: float
    """Of a step's time that would be gone without it."""
    sentence: str


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a fix in a fresh process with the same seed."""

    speedup: float
    low: float
    high: float
    losses: Losses
    largest_difference: float | None = None
    peak_bytes: int | None = None
    step_seconds: float | None = None
    """Of the program as it is, next to it: a machine that changed its speed since the diagnosis makes another speed-up."""
    error: str | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do next."""

    name: str
    """Short, fixed: feed, workers, pinned, fused, autocast, tf32, compile, graph, threads, batch, cached, …"""
    sentence: str
    predicted: float | None
    """How many times faster; None where that cannot be said to about ten per cent."""
    predicted_low: float | None = None
    """The lower end of what is predicted; None where only the upper one is known."""
    predicted_high: float | None = None
    tried: TrialResult | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What holds a training back."""

    schema: Literal[1] = SCHEMA
    verdict: Verdict
    """"none" where nothing can be said; `why` then has the reason."""
    confidence: Confidence
    spread: float
    causes: list[Cause]
    """The first is the verdict, the second the next one; empty where there is no verdict."""
    why: str
    place: SourceLine | None
    ladder: dict[str, float]
    """Steps a second: now, data_free, sync_free, launch_free, roofline; each at least the one before."""
    next: list[Advice]
    correctness: list[str]
    """What is wrong with the batches, beside speed."""
    measurements: Measurements | None

    @property
    def second(self) -> Cause | None:
        """The second cause."""
        return self.causes[1] if len(self.causes) > 1 else None

    def __str__(self) -> str:
        from stoker.diagnose.render import text

        return text(self)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form: the fields, and `second` as a verdict's name."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        plain["second"] = self.second.verdict if self.second is not None else None
        return plain
