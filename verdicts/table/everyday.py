"""What training scripts do besides a usual step, and mistakes that people make: each with the flag `--fixed` that removes it.

Checkpoints, uploads, validation and logs that come every k steps; time between epochs; shards; workers that start again; threads that
hold the interpreter lock; float64 by accident; dense gradients of large tables; weights updated by hand; L-BFGS; two optimizers.
`_DIFFICULT` has 37 more of these, with periods of 2 to 100 steps, nested loops, callbacks and slow sources of data, and `_UNSEEN` 26:
tokenizers and padding in a collate function, rows of a data frame, metrics and tables in each step, matching before a loss.

`queued_batches` was first taken for `data`. Its queue is never empty (the loop waits 35 us of 2.9 ms for a batch): its thread holds the
interpreter lock, so its cause is `host`.
"""

from __future__ import annotations

from typing import Literal

from verdicts.table.program import Program

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
_DIFFICULT = {
    "data": (
        "buffer_refill", "compiled_rows", "pair_networks", "generator_parse", "json_decode", "nested_chunks", "network_samples",
        "page_cache", "prefetch_thread", "shard_border", "uneven_shards_workers", "workers_restart", "zipped_loaders",
    ),
    "host": (
        "accumulated_updates", "ema_each_step", "score_each_epoch", "save_each_epoch", "long_scores", "checkpoint_every_100",
        "metric_every_2", "print_every_3", "histogram_every_5", "validate_every_7", "collect_every_25", "busy_thread",
        "hand_update_print", "lbfgs_closure", "forward_every_20", "pause_each_step", "trainer_callbacks", "two_periods",
        "upload_every_25",
    ),
    "optimizer": ("embedding_adam",),
    "compute": ("deep_regressor",),
    "dispatch": ("narrow_layers",),
    "memory": ("alloc_churn",),
    "precision": ("wide_floats",),
}  # fmt: skip
"""Written by an author who did not know the rule for such events, before it was changed."""
_UNSEEN = {
    "data": (
        "collated_tokens", "ragged_rows", "frame_samples", "replay_memory", "pooled_augmentation", "compressed_files",
        "cropped_in_loop", "drawn_negatives", "gzip_stream",
    ),
    "host": (
        "weight_statistics", "loss_history", "sampled_text", "metrics_file", "console_table", "snapshots", "retrieval_score",
        "neighbours_each_epoch", "set_matching",
    ),
    "optimizer": ("user_vectors", "orthogonal_updates"),
    "dispatch": ("leaky_units", "online_layers", "private_updates"),
    "memory": ("field_maps",),
    "precision": ("table_regression",),
    "kernel": ("spectral_penalty",),
}  # fmt: skip
"""Written later by an author who had read the documentation and not the rule."""
_STYLES = {
    "data": ("padded_tokens", "shard_of_8", "sliced_features", "workers_for_rows"),
    "host": (
        "auc_each_step", "generate_every_20", "gzip_checkpoint", "hook_quantiles", "norms_callback", "report_each_step",
        "weight_histograms",
    ),
    "oversubscribed": ("many_threads",),
    "compute": ("bucketed_encoder", "plain_matmuls"),
    "dispatch": ("unrolled_cells",),
}  # fmt: skip
"""Batches of many sizes, rare steps, Transformers, Lightning and Accelerate; written before the rule was changed for them."""
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
    *(_everyday(script, verdict) for verdict, scripts in _DIFFICULT.items() for script in scripts),
    *(_everyday(script, verdict) for verdict, scripts in _UNSEEN.items() for script in scripts),
    *(_everyday(script, verdict) for verdict, scripts in _STYLES.items() for script in scripts),
    *(_everyday(script, verdict, device="cuda") for verdict, scripts in _ON_CUDA.items() for script in scripts),
]
