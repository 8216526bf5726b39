"""Other tools on the same programs: each runs a program for some seconds and says what its tool calls the bottleneck.

`CAUSES` is the one table that maps what a tool says to our causes. A tool that names a group (`COMPUTE_BOUND`) is right where the
cause is in the group, and exactly right only where the first cause of the group is it. What is not in the table is no verdict:
health, cost, "no clear bottleneck".
"""

from __future__ import annotations

_INSIDE = ("compute", "memory", "precision", "kernel", "optimizer", "dispatch", "launch")

CAUSES: dict[str, dict[str, tuple[str, ...]]] = {
    "traceml": {
        "INPUT_BOUND": ("data",),
        "H2D_BOUND": ("transfer",),
        "RESIDUAL_HEAVY": ("host", "sync"),
        "COMPUTE_BOUND": _INSIDE,
        "INPUT_STRAGGLER": ("straggler",),
        "COMPUTE_STRAGGLER": ("straggler",),
        "H2D_STRAGGLER": ("straggler",),
        "STRAGGLER": ("straggler",),
        "LOW_GPU_UTILIZATION_UNEXPLAINED": ("launch", "sync", "host"),
    },
    "gpuprof": {
        "dataloader_stall": ("data",),
        "prefetch_queue_starved": ("data",),
        "cpu_bound_dataloader": ("data",),
        "io_bound_dataloader": ("data",),
        "cold_cache": ("data",),
        "cache_thrashing": ("data",),
        "pcie_saturation": ("transfer",),
        "kernel_launch_overhead": ("launch", "dispatch", "host", "sync"),
        "small_batch": ("launch", "dispatch", "kernel"),
        "low_mfu": _INSIDE,
        "sdpa_suboptimal": ("memory", "compute"),
        "high_step_variance": ("host",),
        "comm_dominant": ("communication",),
        "bucket_skew": ("straggler",),
    },
    "profiler": {
        cause: (cause,) for cause in ("data", "transfer", "sync", "host", "launch", "dispatch", "optimizer", "compute", "memory")
    },
}
"""By tool, what it may say and the causes that this covers, the one that it means most first."""


def causes_of(tool: str, said: list[str]) -> list[tuple[str, ...]]:
    """What a tool said in our causes, in its order, without what names no cause."""
    return [CAUSES[tool][one] for one in said if one in CAUSES[tool]]
