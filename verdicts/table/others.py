"""Held-out programs: scripts in users' own styles, written without knowing the rule or the other programs.

Their causes were put in as well, but there is no argument that takes one away. They read what `others/make_data.py` writes.
"""

from __future__ import annotations

from typing import Literal

from verdicts.table.program import Program

_SCRIPTS = {
    "data": (
        "npz_convnet", "parquet_rows", "generator_lstm", "record_stream", "padded_text", "token_blocks", "short_epochs",
        "trainer_ngrams", "compiled_spectra", "sensor_windows", "augmented_tiles", "hashed_reviews", "skipgram_pairs",
        "churn_frame", "masked_tokens", "dna_motifs", "sketch_strokes", "garch_paths", "board_planes", "polygon_area",
    ),
    "host": (
        "tqdm_scores", "csv_log", "checkpoints", "lightning_topk", "prediction_dump", "running_auc", "bootstrap_interval",
        "spelling_fixer",
    ),
    "optimizer": (
        "experts", "click_factors", "playlist_vectors", "shop_coefficients", "wide_catalogue", "tag_affinity", "online_ranker",
    ),
    "compute": (
        "mlp_list", "accelerate_encoder", "autocast_mlp", "lstm_windows", "token_buckets", "closure_mlp", "loader_each_epoch",
        "closure_convolution", "plain_convolution", "upscaler", "byte_transformer", "dense_autoencoder", "dilated_forecast",
        "texture_patches", "distilled_student", "paired_towers", "clip_motion",
    ),
    "memory": ("gated_scaling", "norm_stack", "tone_curve"),
    "dispatch": (
        "hand_gru", "circle_gan", "ratings", "pendulum_policy", "heat_equation", "letter_cells", "bracket_trees", "kalman_noise",
        "crf_tagger",
    ),
    "oversubscribed": ("norm_mlp", "gram_matrices", "mixer_patches"),
}  # fmt: skip

_ON_CUDA = {
    "data": ("resized_photos",),
    "optimizer": ("member_vectors",),
    "transfer": ("volume_denoiser",),
    "sync": ("pixel_votes",),
    "launch": ("spiral_ode",),
    "precision": ("wide_regressor",),
}


# Which cause comes first depends on the processor. Without loading, a step of `loader_each_epoch` takes 5 % less on an AMD EPYC and
# 14-19 % less on a Xeon, whose matmuls are faster. `token_buckets` spends 40 % on matmuls and 39 % on element-wise operations there.
_ALSO = {"loader_each_epoch": ("data",), "token_buckets": ("memory",)}


def _other(script: str, verdict: str, *, device: Literal["cpu", "cuda"] = "cpu", neighbour: bool = False) -> Program:
    return Program(
        name=f"other-{'noisy-' if neighbour else ''}{script.replace('_', '-')}",
        folder="others",
        script=f"{script}.py",
        arguments="",
        clean=None,
        verdict=verdict,
        also=_ALSO.get(script, ()),
        kind="sabotaged" if verdict == "none" else "other",
        device=device,
        neighbour=neighbour,
    )


OTHERS = [
    *(_other(script, verdict) for verdict, scripts in _SCRIPTS.items() for script in scripts),
    *(_other(script, verdict, device="cuda") for verdict, scripts in _ON_CUDA.items() for script in scripts),
    *(_other(script, "none") for script in ("short_run", "drawn_sizes", "broken_record")),
    _other("mlp_list", "none", neighbour=True),
]
