"""The table: every program, the cause that was put into it, and the same program without that cause.

A program is a script of `programs/` with arguments. Its cause is known because it was put there, and dominant because `clean`, the
same program without it, is that much faster (`bench_verdicts --shares` measures by how much). Nothing in a script names its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["single", "mixed", "sabotaged", "story"]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A script with arguments, and what is the matter with it."""

    name: str
    script: str = "train.py"
    arguments: str
    clean: str | None
    """Arguments that take the cause away; None where nothing was put in."""
    verdict: str
    """What `stoker diagnose` must say."""
    second: str | None = None
    """What it must say next; None where only one cause was put in."""
    second_clean: str | None = None
    """Arguments that take the second cause away instead."""
    kind: Kind = "single"
    device: Literal["cpu", "cuda"] = "cpu"
    processes: int = 1
    """That train together, started by torchrun."""
    environment: Mapping[str, str] = field(default_factory=dict)
    neighbour: bool = False
    """Whether other processes burn the processor in bursts meanwhile."""
    claim: str = ""
    """What people believed of a story."""

    @property
    def words(self) -> list[str]:
        """The arguments as a command line has them."""
        return [*self.arguments.split(), "--device", self.device]

    @property
    def clean_words(self) -> list[str]:
        """The same without the cause: later arguments win."""
        return [*self.words, *(self.clean or "").split()]

    @property
    def second_clean_words(self) -> list[str]:
        """The same without the second cause."""
        return [*self.words, *(self.second_clean or "").split()]


def _single(verdict: str, rows: Mapping[str, tuple[str, str, str]], **common: object) -> list[Program]:
    return [
        Program(name=f"{verdict}-{name}", script=script, arguments=arguments, clean=clean, verdict=verdict, **common)  # type: ignore[arg-type]
        for name, (script, arguments, clean) in rows.items()
    ]


TRAIN, STREAM, WINDOWS, RANKS = "train.py", "train_stream.py", "train_windows.py", "train_ranks.py"

DATA = _single(
    "data",
    {
        "mlp": (TRAIN, "--model mlp --width 256 --samples lines", "--samples memory"),
        "transformer": (
            TRAIN,
            "--model transformer --features 4 --width 32 --depth 1 --batch 16 --rows 2048 --samples files",
            "--samples memory",
        ),
        "gru": (TRAIN, "--model gru --features 32 --width 8 --depth 1 --batch 32 --rows 4096 --samples lists", "--samples memory"),
        "tabular": (
            STREAM,
            "--model tabular --features 48 --size 8 --width 32 --depth 1 --batch 256 --samples records",
            "--samples memory",
        ),
        "windows": (WINDOWS, "--model convolution --features 4 --width 32 --rows 50000 --samples each", "--samples memory"),
        "worker": (
            TRAIN,
            "--model mlp --features 64 --width 256 --batch 128 --samples lines --workers 1",
            "--samples memory --workers 0",
        ),
    },
)
HOST = _single(
    "host",
    {
        "mlp": (TRAIN, "--model mlp --width 256 --batch 128 --metrics confusion --detail 50 --threads 2", "--metrics none"),
        "transformer": (
            TRAIN,
            "--model transformer --features 4 --width 32 --depth 1 --batch 32 --metrics journal --detail 40",
            "--metrics none",
        ),
        "gru": (
            STREAM,
            "--model gru --features 8 --width 32 --depth 1 --batch 32 --metrics quantiles --detail 30",
            "--metrics none",
        ),
        "tabular": (
            TRAIN,
            "--model tabular --features 8 --width 64 --categories 2000 --metrics histogram --detail 10000",
            "--metrics none",
        ),
    },
)
OPTIMIZER = _single(
    "optimizer",
    {
        "tabular": (
            TRAIN,
            "--model tabular --features 8 --width 64 --categories 100000 --size 16 --optimizer adam",
            "--sparse --optimizer sgd",
        ),
        "mlp": (
            TRAIN,
            "--model mlp --width 256 --depth 40 --batch 4 --optimizer adam --implementation loop",
            "--optimizer sgd --implementation fused",
        ),
        "transformer": (
            STREAM,
            "--model tokens --features 16 --width 64 --depth 1 --categories 20000 --batch 8 --optimizer adamw",
            "--optimizer sgd --implementation fused",
        ),
        "gru": (
            TRAIN,
            "--model gru --features 8192 --time 4 --width 64 --depth 1 --batch 4 --rows 256 --optimizer adam",
            "--optimizer sgd --implementation fused",
        ),
    },
)
COMPUTE = _single(
    "compute",
    {
        "mlp": (TRAIN, "--model mlp --width 512 --depth 3 --batch 512", "--width 64"),
        "transformer": (TRAIN, "--model transformer --features 8 --time 32 --width 256 --depth 2 --batch 16", "--width 32"),
        "convolution": (
            TRAIN,
            "--model convolution --features 16 --time 64 --width 128 --depth 3 --batch 32 --threads 2",
            "--width 16",
        ),
        "tabular": (STREAM, "--model tabular --features 16 --size 64 --width 512 --depth 2 --batch 256", "--width 32"),
    },
)
MEMORY = _single(
    "memory",
    {
        "mlp": (
            TRAIN,
            "--model smooth-mlp --features 512 --width 16 --depth 1 --batch 1024 --rounds 6 --samples ready",
            "--rounds 0",
        ),
        "transformer": (
            TRAIN,
            "--model gated-transformer --features 4 --time 128 --depth 1 --rounds 6 --rows 1024 --samples ready",
            "--rounds 0",
        ),
        "convolution": (
            TRAIN,
            "--model shaken-convolution --features 8 --time 1024 --width 16 --rounds 6 --rows 1024 --samples ready",
            "--rounds 0",
        ),
        "tabular": (
            TRAIN,
            "--model crossed-tabular --features 32 --size 32 --width 16 --depth 1 --batch 512 --rounds 8",
            "--rounds 0",
        ),
    },
)
DISPATCH = _single(
    "dispatch",
    {
        "mlp": (TRAIN, "--model deep-mlp --features 8 --width 8 --depth 120 --batch 8", "--depth 2"),
        "transformer": (TRAIN, "--model heads --features 4 --time 8 --width 16 --depth 3 --batch 4", "--depth 0"),
        "gru": (STREAM, "--model cells --features 4 --width 8 --batch 8 --time 48", "--time 4"),
        "tabular": (WINDOWS, "--model cells --features 4 --width 8 --batch 8 --time 48", "--time 4"),
        "columns": (TRAIN, "--model columns --features 60 --categories 20 --batch 16 --threads 2", "--features 4"),
    },
)
OVERSUBSCRIBED = _single(
    "oversubscribed",
    {
        "mlp": (TRAIN, "--model mlp --width 256 --depth 4 --batch 256 --threads 16", "--threads 2"),
        "transformer": (TRAIN, "--model transformer --features 8 --width 64 --depth 2 --batch 32 --threads 8", "--threads 2"),
        "convolution": (
            STREAM,
            "--model convolution --features 8 --time 64 --width 32 --depth 4 --batch 32 --threads 12",
            "--threads 2",
        ),
        "tabular": (WINDOWS, "--model transformer --features 4 --width 32 --depth 3 --batch 32 --threads 16", "--threads 2"),
    },
)
CUDA = {"device": "cuda"}
TRANSFER = _single(
    "transfer",
    {
        "mlp": (TRAIN, "--model mlp --features 4096 --batch 2048 --rows 16384 --samples ready", "--samples resident"),
        "transformer": (
            TRAIN,
            "--model transformer --features 512 --time 32 --width 32 --depth 1 --batch 512 --rows 4096 --samples ready",
            "--samples resident",
        ),
        "convolution": (
            TRAIN,
            "--model convolution --features 256 --time 256 --width 16 --batch 128 --rows 1024 --samples ready",
            "--samples resident",
        ),
        "gru": (
            TRAIN,
            "--model gru --features 2048 --time 8 --width 32 --batch 512 --rows 4096 --samples ready",
            "--samples resident",
        ),
    },
    **CUDA,
)
SYNC = _single(
    "sync",
    {
        "mlp": (TRAIN, "--model mlp --width 4096 --depth 8 --batch 256 --metrics finite", "--metrics none"),
        "transformer": (TRAIN, "--model transformer --width 512 --depth 4 --batch 128 --metrics finite", "--metrics none"),
        "convolution": (
            TRAIN,
            "--model convolution --width 512 --depth 6 --batch 24 --time 256 --metrics finite",
            "--metrics none",
        ),
        "tabular": (STREAM, "--model tabular --features 16 --width 4096 --depth 6 --batch 320 --metrics finite", "--metrics none"),
    },
    **CUDA,
)
LAUNCH = _single(
    "launch",
    {
        "mlp": (TRAIN, "--model deep-mlp --width 32 --depth 100 --batch 32 --samples resident", "--depth 2"),
        "transformer": (
            TRAIN,
            "--model heads --features 4 --time 16 --width 32 --depth 4 --batch 16 --samples resident",
            "--depth 0",
        ),
        "gru": (TRAIN, "--model cells --features 4 --width 32 --batch 64 --time 48 --samples resident", "--time 4"),
        "tabular": (TRAIN, "--model columns --features 60 --categories 20 --batch 64 --samples resident", "--features 4"),
    },
    **CUDA,
)
PRECISION = _single(
    "precision",
    {
        "mlp": (TRAIN, "--model mlp --width 4096 --depth 6 --batch 8192 --rows 65536 --samples resident", "--tf32"),
        "transformer": (
            TRAIN,
            "--model transformer --width 1024 --depth 6 --time 128 --batch 64 --rows 512 --samples resident",
            "--tf32",
        ),
        "convolution": (
            TRAIN,
            "--model mlp --features 1024 --width 8192 --depth 3 --batch 4096 --rows 32768 --samples resident",
            "--tf32",
        ),
        "tabular": (
            TRAIN,
            "--model tabular --features 64 --size 64 --width 4096 --depth 6 --batch 4096 --rows 32768 --samples resident",
            "--tf32",
        ),
    },
    **CUDA,
)
KERNEL = _single(
    "kernel",
    {
        "mlp": (TRAIN, "--model ranked-mlp --features 4096 --batch 4096 --rounds 6 --samples resident", "--rounds 0"),
        "transformer": (
            TRAIN,
            "--model ranked-transformer --features 512 --time 128 --width 32 --batch 128 --rows 1024 --rounds 6 --samples resident",
            "--rounds 0",
        ),
        "convolution": (
            TRAIN,
            "--model ranked-convolution --features 512 --time 256 --width 16 --batch 64 --rows 512 --rounds 6 --samples resident",
            "--rounds 0",
        ),
        "gru": (
            TRAIN,
            "--model ranked-gru --features 1024 --time 32 --width 32 --batch 256 --rows 2048 --rounds 6 --samples resident",
            "--rounds 0",
        ),
    },
    **CUDA,
)

TWO = {"processes": 2}
STRAGGLER = _single(
    "straggler",
    {
        "mlp": (RANKS, "--model mlp --width 128 --batch 128 --last-samples lines", "--last-samples memory"),
        "tabular": (
            RANKS,
            "--model tabular --features 8 --width 64 --categories 100 --batch 128 --metrics confusion --detail 60",
            "--metrics none",
        ),
    },
    **TWO,
)
COMMUNICATION = _single(
    "communication",
    {
        "mlp": (RANKS, "--model mlp --width 1024 --depth 4 --batch 2", "--width 64"),
        "tabular": (RANKS, "--model tabular --features 4 --width 16 --categories 100000 --size 16 --batch 16", "--categories 100"),
    },
    **TWO,
)

SINGLES = [
    *DATA,
    *HOST,
    *OPTIMIZER,
    *COMPUTE,
    *MEMORY,
    *DISPATCH,
    *OVERSUBSCRIBED,
    *STRAGGLER,
    *COMMUNICATION,
    *TRANSFER,
    *SYNC,
    *LAUNCH,
    *PRECISION,
    *KERNEL,
]


def _mixed(first: str, second: str, arguments: str, clean: str, second_clean: str, script: str = TRAIN) -> Program:
    return Program(
        name=f"mixed-{first}-{second}",
        script=script,
        arguments=arguments,
        clean=clean,
        verdict=first,
        second=second,
        second_clean=second_clean,
        kind="mixed",
    )


MIXED = [
    _mixed(
        "data",
        "host",
        "--model mlp --width 64 --batch 128 --samples lines --metrics confusion --detail 55",
        "--samples memory",
        "--metrics none",
    ),
    _mixed(
        "host",
        "data",
        "--model mlp --features 16 --width 64 --batch 128 --samples lines --metrics confusion --detail 130",
        "--metrics none",
        "--samples memory",
    ),
    _mixed("data", "compute", "--model mlp --width 320 --batch 256 --samples lines", "--samples memory", "--width 16"),
    _mixed(
        "host",
        "compute",
        "--model tabular --features 16 --size 32 --width 320 --depth 2 --batch 256 --metrics quantiles --detail 30",
        "--metrics none",
        "--width 16",
        script=STREAM,
    ),
    _mixed(
        "data",
        "optimizer",
        "--model tabular --features 64 --categories 50000 --batch 128 --optimizer adam --samples lines",
        "--samples memory",
        "--sparse --optimizer sgd",
    ),
    _mixed(
        "optimizer",
        "data",
        "--model tabular --features 24 --categories 100000 --batch 128 --optimizer adam --samples lines",
        "--sparse --optimizer sgd",
        "--samples memory",
    ),
    _mixed(
        "data",
        "memory",
        "--model gated-transformer --features 4 --time 128 --depth 1 --rounds 2 --samples lines --rows 1024",
        "--samples memory",
        "--rounds 0",
    ),
    _mixed(
        "host",
        "memory",
        "--model smooth-mlp --features 512 --width 16 --batch 1024 --rounds 6 --metrics confusion --detail 130",
        "--metrics none",
        "--rounds 0",
    ),
    _mixed(
        "host",
        "dispatch",
        "--model deep-mlp --features 8 --width 8 --depth 40 --batch 8 --metrics confusion --detail 1600",
        "--metrics none",
        "--depth 2",
    ),
    _mixed(
        "data",
        "dispatch",
        "--model deep-mlp --features 256 --width 8 --depth 40 --batch 32 --samples lines --rows 1024",
        "--samples memory",
        "--depth 2",
    ),
    _mixed(
        "optimizer",
        "compute",
        "--model mlp --width 512 --depth 6 --batch 24 --optimizer adam",
        "--optimizer sgd --implementation fused",
        "--batch 1",
    ),
]

FRAMEWORKS = [
    Program(name=f"data-{script}", script=f"with_{script}.py", arguments=arguments, clean="--samples rows", verdict="data")
    for script, arguments in {
        "accelerate": "--model mlp --width 256 --samples lines",
        "lightning": "--model mlp --features 64 --width 256 --batch 128 --samples lines",
        "transformers": "--model mlp --features 64 --width 256 --batch 128 --samples lines",
    }.items()
]

STORIES = [
    Program(
        name="story-events-files",
        script="events_files.py",
        arguments="",
        clean="--cache 5",
        verdict="data",
        kind="story",
        claim="shuffling across 660 files is slow: random samplers do not scale",
    ),
    Program(
        name="story-events-sensors",
        script="events_sensors.py",
        arguments="",
        clean="--at-once",
        verdict="dispatch",
        kind="story",
        claim="reading is not the bottleneck: the model is too small for the device",
    ),
    Program(
        name="story-bars",
        script="bars.py",
        arguments="",
        clean="--width 16",
        verdict="compute",
        kind="story",
        claim="data loading takes 40 % of a step",
    ),
    Program(
        name="story-series-attention",
        script="series.py",
        arguments="--heads 8",
        clean="--heads 1 --length 128",
        verdict="memory",
        kind="story",
        claim="opening the file for each sample holds the training back",
    ),
    Program(
        name="story-series-whole",
        script="series.py",
        arguments="--points 500000 --series 20 --length 64 --width 16 --depth 1 --batch 8",
        clean="--baked",
        verdict="data",
        kind="story",
        claim="opening the file for each sample holds the training back",
    ),
]

_BY_NAME = {program.name: program for program in [*SINGLES, *MIXED]}


def _few_steps(name: str) -> Program:
    return replace(
        _BY_NAME[name],
        name=f"few-steps-{name}",
        arguments=f"{_BY_NAME[name].arguments} --steps 5",
        clean=None,
        verdict="none",
        kind="sabotaged",
    )


def _noisy(name: str) -> Program:
    return replace(_BY_NAME[name], name=f"noisy-{name}", clean=None, verdict="none", kind="sabotaged", neighbour=True)


SABOTAGED = [
    *(_few_steps(name) for name in ("data-mlp", "host-mlp", "optimizer-tabular", "compute-mlp", "dispatch-mlp")),
    *(_noisy(name) for name in ("data-windows", "host-transformer", "optimizer-transformer", "compute-tabular", "memory-mlp")),
]

PROGRAMS = [*SINGLES, *FRAMEWORKS, *MIXED, *STORIES, *SABOTAGED]
