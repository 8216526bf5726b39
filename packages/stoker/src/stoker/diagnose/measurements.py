"""The records of a diagnosis: `Measurements`, and the parts of a `Finding` (finding.py) such as causes, advice and trials.

Each number of `Measurements` comes from its own window of steps, in which one thing is different. Times are seconds per step. Letters
name the windows: T the unchanged loop, D the loader alone, C cached batches, G the device alone. Field names are the JSON form
(schema 1), which docs/diagnosing.md describes.
"""

from __future__ import annotations

import math
import statistics
from itertools import accumulate, pairwise
from typing import Literal

import msgspec

from stoker.sandbox import SandboxMode

Device = Literal["cpu", "cuda"]
SE_OF_MEDIAN = 1.2533 / 0.6745
"""Standard error of a median for normal times, in half interquartile ranges over the root of the number of steps."""
MEDIAN_OF_FEW = 1.2533
"""Standard error of a median, in that of a mean, for normal values."""
SIGMA_OF_DISTANCE = 1.4826
"""Standard deviation of normal values, in their median distance from the median, on which one outlier has no effect."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the steps of one measurement window, or of several of its kind."""

    seconds: list[float]
    pieces: list[int] = []
    """Numbers of steps measured in a row; between pieces the machine may have changed its speed. Empty: all in a row."""

    @property
    def median(self) -> float:
        """The time of a usual step."""
        return statistics.median(self.seconds) if self.seconds else float("nan")

    @property
    def spread(self) -> float:
        """Half the interquartile range as a share of the median; each step relative to those measured in a row with it."""
        if len(self.seconds) < 4 or not self.median:
            return float("inf")
        relative = [seconds / middle for piece, middle in self.by_piece() for seconds in piece if middle]
        low, _, high = statistics.quantiles(relative, n=4)
        return (high - low) / 2

    def by_piece(self) -> list[tuple[list[float], float]]:
        """The steps of each piece, and their median."""
        ends = list(accumulate(self.pieces or [len(self.seconds)]))
        pieces = [self.seconds[start:end] for start, end in pairwise([0, *ends])]
        return [(piece, statistics.median(piece)) for piece in pieces if piece]

    @property
    def error(self) -> float:
        """The standard error of the median, as a share of it, for normal times."""
        return SE_OF_MEDIAN * min(1.0, self.spread) / math.sqrt(max(1, len(self.seconds)))


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """The function by its name in the file: one without a name, such as a list comprehension, by that around it."""
        function = self.function.split(".<locals>.<")[0]
        place = f"{self.file}:{self.line}"
        return place if function.startswith("<") else f"{function} ({place})"


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code, and the share of a phase spent in it and in what it calls."""

    place: SourceLine
    share: float


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """A line where the host waits for the device."""

    place: SourceLine | None
    count: float  # times per step


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """The host's time of a step of T by phase. On a CPU this is the whole step."""

    next: float  # waiting for a batch
    prepare: float  # from the batch to the first forward of a module: slicing, stacking, copies to a device
    forward: float  # to the beginning of the backward pass, the loss included
    backward: float
    optimizer: float
    rest: float  # after the optimizer's step: logging, metrics, the rest of the loop


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """Where batches come from."""

    kind: str  # `DataLoader`, the class of another iterable, or `loop` if batches are made in the loop itself
    workers: int = 0
    pinned: bool | None = None
    dataset: str | None = None
    place: SourceLine | None = None  # the line of the loop over it
    functions: list[Blame] = []  # lines that make a batch, by their share of its time
    on_gpu: bool = False  # whether its batches are on the GPU already: making one includes the upload
    persistent: bool | None = None  # whether worker processes persist between epochs; None without workers


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of this machine, measured before the training; None if not applicable."""

    cores: int
    threads: int  # torch.get_num_threads()
    gpu: str | None = None
    matmul_flops: dict[str, float]  # per second by type: fp32, and tf32, bf16, fp16 if the device has them
    dispatch_seconds: float  # the host's cost of one small operation
    page_seconds: float | None = None  # to get a page of memory from the system and write to it; None if not measured
    launch_seconds: float | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a step does, counted on a cached batch."""

    ops: float  # operations that torch dispatches (aten)
    kernels: float | None = None
    flops: float
    h2d_bytes: float = 0.0
    h2d_copies: float = 0.0
    table_rows: float = 0.0  # rows of embeddings that get a dense gradient
    table_rows_used: float = 0.0  # rows of them that the step looks up, at most
    shares: dict[str, float] = {}
    """Of the time of a step (CPU) or its kernels (GPU) by class: gemm, elementwise, reduce, search, copy, optimizer, other; on a CPU
    also other_ops and python."""
    device_seconds: float | None = None
    """How long the GPU was busy, without uploads: G if a step cannot be issued while the GPU sleeps."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Steps with a suspect removed or a fix switched on, in turn with unchanged steps.

    Suspects, and the fixes `threads`, `workers` and `malloc`, run on the program's own batches; other fixes on cached batches where
    possible; `feed` compares batches gathered at once with cached ones.
    """

    as_it_is: Stretch
    with_fix: Stretch


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a distributed run: seconds of its steps."""

    rank: int
    step_seconds: float
    apart_seconds: float  # without the all-reduce: what it takes by itself
    waited_for_cores: float | None = None
    """Share of the time of the steps without all-reduce in which it was ready to run and others had its core; None if unknown."""


class RareSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that are rare and take far longer than the others: a checkpoint, a validation, an upload."""

    share: float  # share of all time: what they take longer than other steps
    every: float | None = None  # steps from one to the next; None if only one was seen
    seconds: float  # of one such step, or of the time between two epochs
    others: float  # of the other steps
    between_epochs: bool = False  # whether it is the time between two epochs, not a step
    phase: str | None = None  # the phase with most of this time; None if not measured
    alone: bool = False  # whether other steps spend almost no time at that line
    recompiles: bool = False  # whether torch compiles again in such a step
    in_outer_loop: bool = False  # whether a loop around the training loop waits for its next item: what the batches are made of
    place: SourceLine | None = None  # the line with most of this time; a line of a library if only rare steps reach it
    called: SourceLine | None = None  # the user's line that called it


class BusyThread(msgspec.Struct, frozen=True, kw_only=True):
    """Another Python thread of the program that computes at the same time as the loop."""

    name: str
    share: float  # of the time, in which it had a core
    place: SourceLine | None = None  # the user's line that it ran when it was measured


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the verdict is made of: `Finding.measurements`.

    Example:
        >>> Stretch(seconds=[0.010, 0.011, 0.012]).median
        0.011
    """

    device: Device
    steps_seen: int
    loop: Stretch
    """T."""
    wall_seconds: float | None = None
    """The mean step by the wall clock: over whole periods of rare steps, including the time between epochs."""
    rare: RareSteps | None = None
    """The rare steps with most of the time; None if there are none."""
    also_rare: RareSteps | None = None
    """The other kind: time between epochs if `rare` is in steps, and the reverse; None if only one kind was seen."""
    phases: Phases
    cached: Stretch | None = None
    """C, within the user's loop; None if its iterable cannot be replaced."""
    loader_alone: Stretch | None = None
    """D."""
    device_alone: Stretch | None = None
    """G."""
    device_phases: dict[str, float] = {}
    """G by phase: forward, backward, optimizer."""
    pages: dict[str, list[float]] = {}
    """Pages of memory that a step got from the system, for each window, by its kind (`loop`, `cached`). A process that frees memory
    to the system gets it again at the next step, and how much it frees differs from process to process."""
    fewer_threads: dict[str, float] = {}
    """Seconds of a cached step by the number of torch's threads."""
    syncs: list[Sync] = []
    """Lines that read values of the GPU back."""
    blames: dict[str, list[Blame]] = {}
    """Lines of the user's code by phase (next, prepare, forward, backward, optimizer, rest), the largest share first."""
    loader: Loader
    framework: str | None = None
    """That runs the loop: `transformers`, `lightning` or `accelerate`; None for a plain loop."""
    work: Work | None = None
    machine: Machine
    precision: str = "fp32"
    """Of most matmuls: fp32, tf32, bf16, fp16."""
    optimizer: str | None = None
    optimizer_fused: bool | None = None
    what_ifs: dict[str, WhatIf] = {}
    """By the name of the fix."""
    fix_values: dict[str, int] = {}
    """The value that a fix was measured with: the number of workers."""
    removed: dict[str, WhatIf] = {}
    """Steps with one suspect removed, in turn with unchanged steps, by the name of the experiment (experiments/)."""
    phases_alone: Phases | None = None
    """The host's time of a step by phase with everything removed that an experiment can remove; None without a GPU."""
    unused_fixes: dict[str, str] = {}
    """Why a fix changes nothing in this program, by its name; such a fix is not advised."""
    measuring_seconds: float = 0.0
    """From the end of the first step to the end of measuring."""
    ranks: list[Rank] = []
    """The processes of a distributed run; all else is of the first. Empty if there is only one process."""
    gpu_taken: float | None = None
    """Share of the GPU's time that other programs had; None without a GPU."""
    waited_for_cores: float | None = None
    """Share of T in which a thread was ready to run and others had its core; None if the system does not report it."""
    cores_taken: float | None = None
    """Share of the CPU time of T that other programs used; None if the system does not report it."""
    own_processes: float = 0.0
    """Cores that processes of the program itself use, workers of a loader included."""
    busy_thread: BusyThread | None = None
    """The busiest other Python thread during T; None if no other one computes."""
    asleep: float | None = None
    """Share of T in which the thread of the loop had no core because it waited: for a batch, a lock or a device."""
    compiled: bool = False
    sized: bool = False
    """Whether batches differ in size: then T and C are of the same batches, and removals are compared on cached ones."""
    between_epochs: dict[str, float] = {}
    """Share of all time between epochs: `loader`, until it gives batches again (also in T), and `other` (in no step)."""
    sandbox: SandboxMode | None = None
    """How the user's files were protected; None for a step in this process."""
    notes: list[str] = []
    losses: list[float] = []

    def for_pages(self, *kinds: str) -> list[float]:
        """Seconds per step spent on memory from the system, in each window of these kinds."""
        cost = self.machine.page_seconds or 0.0
        return [cost * number for kind in kinds for number in self.pages.get(kind, [])]


SCHEMA: Literal[1] = 1
_Work = Literal["optimizer", "compute", "precision", "memory", "kernel", "dispatch"]
_BetweenProcesses = Literal["oversubscribed", "straggler", "communication"]
Verdict = Literal["data", "transfer", "sync", "host", "launch", _Work, _BetweenProcesses, "none"]
WORK: tuple[Verdict, ...] = ("precision", "compute", "memory", "kernel")
"""The verdicts by kind of operation."""
Confidence = Literal["high", "medium", "low"]
Losses = Literal["equal", "within tolerance", "changed", "not compared"]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of the time of a step."""

    verdict: Verdict
    share: float  # of a step's time that would be saved without it
    sentence: str
    rare: bool = False  # whether rare steps, not a part of the usual ones, make most of it


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a fix in a fresh process with the same seed."""

    speedup: float
    low: float
    high: float
    losses: Losses
    largest_difference: float | None = None
    peak_bytes: int | None = None
    step_seconds: float | None = None
    """Of the baseline next to it: a machine that changed its speed since the diagnosis gives another speed-up."""
    repeats: bool = True
    """Whether the losses of the program are the same bits in each run."""
    receipt: str = ""
    """The text of the receipt."""
    error: str | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do next."""

    name: str  # short, fixed: feed, workers, pinned, fused, autocast, tf32, compile, graph, threads, batch, cached, …
    sentence: str
    predicted: float | None  # the speed-up; None if it is not known to a fifth
    predicted_low: float | None = None  # the lower end; None if only the upper one is known
    predicted_high: float | None = None
    tried: TrialResult | None = None


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `--apply`."""

    file: str | None = None
    """The patch that was written; None if none was."""
    folder: str | None = None
    """The folder in which it is applied; None for the current one."""
    fixes: list[str] = []
    """The names of the advice that it contains."""
    tried: TrialResult | None = None
    """The result of the patched program."""
    left_out: dict[str, str] = {}
    """Why other advice is not in it, by its name."""
    why: str = ""
    """Why nothing was tried, or why it was tried without a verdict."""
