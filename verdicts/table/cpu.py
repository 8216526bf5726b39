"""Programs of a CPU, each with one bottleneck; one list per cause."""

from __future__ import annotations

from verdicts.table.program import STREAM, TRAIN, WINDOWS, single

DATA = single(
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
HOST = single(
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
OPTIMIZER = single(
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
COMPUTE = single(
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
MEMORY = single(
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
DISPATCH = single(
    "dispatch",
    {
        "mlp": (TRAIN, "--model deep-mlp --features 8 --width 8 --depth 120 --batch 8", "--depth 2"),
        "transformer": (TRAIN, "--model heads --features 4 --time 8 --width 16 --depth 3 --batch 4", "--depth 0"),
        "gru": (STREAM, "--model cells --features 4 --width 8 --batch 8 --time 48", "--time 4"),
        "tabular": (WINDOWS, "--model cells --features 4 --width 8 --batch 8 --time 48", "--time 4"),
        "columns": (TRAIN, "--model columns --features 60 --categories 20 --batch 16 --threads 2", "--features 4"),
    },
)
OVERSUBSCRIBED = single(
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

ON_CPU = [*DATA, *HOST, *OPTIMIZER, *COMPUTE, *MEMORY, *DISPATCH, *OVERSUBSCRIBED]
