"""Programs of another hand: scripts in users' own styles, written without knowing the rule or the other programs.

Their causes were put in as well, but there is no argument that takes one away. They read what `others/make_data.py` writes.
"""

from __future__ import annotations

from benchmarks.verdicts.table.program import Program

_SCRIPTS = {
    "data": (
        "npz_convnet", "parquet_rows", "generator_lstm", "record_stream", "padded_text", "token_blocks", "short_epochs",
        "trainer_ngrams", "compiled_spectra",
    ),
    "host": ("tqdm_scores", "csv_log", "checkpoints", "lightning_topk"),
    "optimizer": ("experts", "click_factors"),
    "compute": (
        "mlp_list", "accelerate_encoder", "autocast_mlp", "lstm_windows", "token_buckets", "closure_mlp", "loader_each_epoch",
        "closure_convolution", "plain_convolution",
    ),
    "memory": ("gated_scaling", "norm_stack"),
    "dispatch": ("hand_gru", "circle_gan", "ratings"),
    "oversubscribed": ("norm_mlp", "gram_matrices"),
}  # fmt: skip


def _other(script: str, verdict: str, *, neighbour: bool = False) -> Program:
    return Program(
        name=f"other-{'noisy-' if neighbour else ''}{script.replace('_', '-')}",
        folder="others",
        script=f"{script}.py",
        arguments="",
        clean=None,
        verdict=verdict,
        kind="sabotaged" if verdict == "none" else "other",
        neighbour=neighbour,
    )


OTHERS = [
    *(_other(script, verdict) for verdict, scripts in _SCRIPTS.items() for script in scripts),
    *(_other(script, "none") for script in ("short_run", "drawn_sizes", "broken_record")),
    _other("mlp_list", "none", neighbour=True),
]
