"""What training scripts do besides a usual step, and mistakes that people make: each with the flag `--fixed` that removes it.

Checkpoints, uploads, validation and logs that come every k steps; time between epochs; shards; workers that start again; threads that
hold the interpreter lock; float64 by accident; dense gradients of large tables; weights updated by hand; L-BFGS; two optimizers.

`queued_batches` was first taken for `data`. Its queue is never empty (the loop waits 35 us of 2.9 ms for a batch): its thread holds the
interpreter lock, so its cause is `host`.
"""

from __future__ import annotations

from typing import Literal

from benchmarks.verdicts.table.program import Program

_SCRIPTS = {
    "data": ("shard_change", "refilled_buffer", "whole_records", "restarted_workers", "hand_update_text"),
    "host": (
        "upload_metrics", "checkpoint_every", "validate_inside", "collect_garbage", "periodic_log", "thread_statistics",
        "accumulate_validate", "index_each_epoch", "evaluate_each_epoch", "copied_best", "queued_batches",
    ),
    "optimizer": ("two_optimizers", "dense_gradients", "lbfgs_history"),
    "compute": ("hand_update", "lbfgs_fit"),
    "memory": ("fresh_buffers",),
    "precision": ("doubles",),
}  # fmt: skip
_ON_CUDA = {"host": ("cuda_checkpoints", "cuda_validate"), "precision": ("cuda_doubles",), "launch": ("autocast_blocks",)}


def _everyday(script: str, verdict: str, *, device: Literal["cpu", "cuda"] = "cpu") -> Program:
    return Program(
        name=f"everyday-{script.replace('_', '-')}",
        folder="everyday",
        script=f"{script}.py",
        arguments="",
        clean="--fixed",
        verdict=verdict,
        kind="everyday",
        device=device,
    )


EVERYDAY = [
    *(_everyday(script, verdict) for verdict, scripts in _SCRIPTS.items() for script in scripts),
    *(_everyday(script, verdict, device="cuda") for verdict, scripts in _ON_CUDA.items() for script in scripts),
]
