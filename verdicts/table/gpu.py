"""Programs of a GPU, most of them by frameworks; what each suspect costs is measured by leaving it out.

The flag `--without NAME` of a script removes that suspect as its user would: reads of the GPU are not done, batches are prepared in
advance or lie on the GPU, a callback is left out, matrix products use fewer bits. Work is halved in width or less often done.
`launch` keeps the arithmetic and saves launches where this is easy, and leaves out layers where it is not:

- a CUDA graph of forward and backward: `nano_letters`, `clipped_policy`, `caption_towers`, `many_scales`, `saved_states`
- `torch.compile`: `sorted_ranks`
- batched operations for a Python loop: `region_heads`
- a quarter of the layers: all others that have it

The stated cause is an opinion. The accepted causes are those of `ablations.py`.
"""

from __future__ import annotations

from verdicts.table.program import Program

_STATED: dict[str, dict[str, tuple[str, ...]]] = {
    "launch": {
        "review_classifier": ("sync", "launch", "data"),
        "chat_decoder": ("sync", "launch", "host"),
        "summary_pairs": ("sync", "launch", "data"),
        "nano_letters": ("sync", "launch", "data"),
        "tagger_module": ("sync", "launch", "host"),
        "patch_forecast": ("sync", "launch", "data"),
        "tile_images": ("sync", "launch", "host", "data"),
        "clipped_policy": ("sync", "launch"),
        "digit_pair_nets": ("sync", "launch", "transfer"),
        "molecule_graphs": ("sync", "launch", "data"),
        "noise_schedule": ("sync", "launch", "data"),
        "caption_towers": ("sync", "launch"),
    },
    "data": {
        "forum_posts": ("data", "sync", "launch"),
        "leaf_photos": ("data", "sync", "launch"),
        "order_ticks": ("data", "sync", "launch"),
    },
    "transfer": {
        "bank_columns": ("transfer", "sync", "launch"),
        "street_clips": ("transfer", "sync"),
    },
    "sync": {
        "graded_answers": ("sync", "launch", "compute"),
        "region_heads": ("sync", "launch", "compute"),
    },
    "host": {
        "weight_journal": ("host", "launch", "data"),
        "risk_scores": ("host", "launch", "data"),
        "activation_hooks": ("host", "sync"),
        "saved_states": ("host", "sync", "launch"),
        "story_samples": ("host", "sync", "launch"),
        "traffic_module": ("host", "sync", "launch"),
    },
    "optimizer": {"many_scales": ("optimizer", "launch", "sync")},
    "precision": {"wide_reader": ("precision", "sync", "data")},
    "compute": {
        "padded_reviews": ("compute", "sync", "data"),
        "compiled_blocks": ("compute", "sync", "transfer"),
    },
    "memory": {
        "gated_field": ("memory", "sync"),
        "prose_model": ("compute", "sync", "data"),
        "sorted_ranks": ("launch", "sync"),
    },
}
"""By stated cause and script, the suspects that it can be run without."""
_PERIODS = {"leaf_photos": 12, "order_ticks": 8, "saved_states": 50, "story_samples": 20, "traffic_module": 30}
"""Steps from one rare event to the next."""

ON_GPU = [
    Program(
        name=f"gpu-{script.replace('_', '-')}",
        folder="gpu",
        script=f"{script}.py",
        arguments="",
        clean=None,
        verdict=verdict,
        kind="gpu",
        device="cuda",
        without=without,
        period=_PERIODS.get(script, 1),
    )
    for verdict, scripts in _STATED.items()
    for script, without in scripts.items()
]
