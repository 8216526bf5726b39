"""Programs with two causes: a first one, and a second one that is there when the first is gone."""

from __future__ import annotations

from verdicts.table.program import STREAM, TRAIN, Program


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
