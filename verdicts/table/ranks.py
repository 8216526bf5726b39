"""Programs of two processes that train together, each with one bottleneck; one list per cause."""

from __future__ import annotations

from verdicts.table.program import RANKS, single

TWO = {"processes": 2}
STRAGGLER = single(
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
COMMUNICATION = single(
    "communication",
    {
        "mlp": (RANKS, "--model mlp --width 1024 --depth 4 --batch 2", "--width 64"),
        "tabular": (RANKS, "--model tabular --features 4 --width 16 --categories 100000 --size 16 --batch 16", "--categories 100"),
    },
    **TWO,
)

ON_RANKS = [*STRAGGLER, *COMMUNICATION]
