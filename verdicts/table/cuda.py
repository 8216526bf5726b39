"""Programs of a GPU, each with one bottleneck; one list per cause."""

from __future__ import annotations

from verdicts.table.program import STREAM, TRAIN, single

CUDA = {"device": "cuda"}
TRANSFER = single(
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
SYNC = single(
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
LAUNCH = single(
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
PRECISION = single(
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
KERNEL = single(
    "kernel",
    {
        "mlp": (TRAIN, "--model ranked-mlp --features 4096 --batch 4096 --rounds 6 --samples resident", "--rounds 0"),
        "transformer": (
            TRAIN,
            "--model ranked-transformer --features 512 --time 128 --width 32 --batch 256 --rows 1024 --rounds 10"
            " --samples resident",
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

ALSO_ON_CUDA = [
    *single(
        "data",
        {
            "gpu-mlp": (TRAIN, "--model mlp --features 128 --width 256 --batch 256 --samples lines", "--samples memory"),
            "gpu-transformer": (
                TRAIN,
                "--model transformer --features 4 --width 64 --depth 2 --batch 16 --rows 2048 --samples files",
                "--samples memory",
            ),
        },
        **CUDA,
    ),
    *single(
        "host",
        {
            "gpu-mlp": (TRAIN, "--model mlp --width 256 --batch 128 --metrics confusion --detail 60", "--metrics none"),
            "gpu-gru": (
                STREAM,
                "--model gru --features 8 --width 32 --depth 1 --batch 32 --metrics quantiles --detail 40",
                "--metrics none",
            ),
        },
        **CUDA,
    ),
    *single(
        "optimizer",
        {
            "gpu-tabular": (
                TRAIN,
                "--model tabular --features 8 --width 64 --categories 2000000 --size 64 --optimizer adam --samples resident",
                "--sparse --optimizer sgd",
            ),
            "gpu-transformer": (
                STREAM,
                "--model tokens --features 16 --width 128 --depth 1 --categories 2000000 --batch 8 --optimizer adamw",
                "--optimizer sgd --implementation fused",
            ),
        },
        **CUDA,
    ),
    *single(
        "compute",
        {
            "gpu-mlp": (
                TRAIN,
                "--model mlp --width 8192 --depth 4 --batch 8192 --rows 32768 --tf32 --samples resident",
                "--width 256",
            ),
            "gpu-transformer": (
                TRAIN,
                "--model transformer --width 2048 --depth 4 --time 128 --batch 64 --rows 512 --tf32 --samples resident",
                "--width 64",
            ),
        },
        **CUDA,
    ),
    *single(
        "memory",
        {
            "gpu-mlp": (
                TRAIN,
                "--model smooth-mlp --features 8192 --width 16 --depth 1 --batch 8192 --rows 16384 --rounds 6 --samples resident",
                "--rounds 0",
            ),
            "gpu-transformer": (
                TRAIN,
                "--model gated-transformer --features 4 --time 1024 --depth 1 --batch 512 --rows 1024 --rounds 6"
                " --samples resident",
                "--rounds 0",
            ),
        },
        **CUDA,
    ),
]
"""Causes that a CPU has too."""

ON_CUDA = [*TRANSFER, *SYNC, *LAUNCH, *PRECISION, *KERNEL, *ALSO_ON_CUDA]
