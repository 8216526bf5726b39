"""Programs of a GPU, most of them by frameworks; what each suspect costs is measured by leaving it out.

The flag `--without NAME` of a script removes that suspect as its user would: reads of the GPU are not done, batches are prepared in
advance or lie on the GPU, a callback is left out, matrix products use fewer bits. Work is halved in width or less often done.
`launch` keeps the arithmetic and saves launches where this is easy, and leaves out layers where it is not:

- a CUDA graph of forward and backward: `nano_letters`, `clipped_policy`, `caption_towers`, `many_scales`
- `torch.compile`: `gated_field`, `sorted_ranks`
- batched operations for a Python loop: `region_heads`
- a quarter of the layers: all others that have it

The stated cause is an opinion. The accepted causes are those of `ablations.py`.
"""

from __future__ import annotations

from benchmarks.verdicts.table.program import Program

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
    },
}
"""By stated cause and script, the suspects that it can be run without."""
_PERIODS: dict[str, int] = {}
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
