"""Fixes of the scripts in `others/`: edits that take a script's cause away, for a run that shows how much of its time that is.

Each key of a fix occurs once in its script and is replaced by its value. Waste goes by code that does without it: batches that are
`kept`, a metric that is not computed, rows that are updated sparsely. Work (compute, memory, dispatch) goes by a smaller model.
"""

from __future__ import annotations

KEPT = '''import itertools


def kept(batches, count=8, held=[]):
    """The first batches over and over, as many as an epoch has."""
    if not held:
        held.extend(itertools.islice(iter(batches), count))
    try:
        number = len(batches)
    except TypeError:
        number = 10**9
    return itertools.islice(itertools.cycle(held), number)


'''
"""Comes before a script whose fix uses it."""

_DATA = {
    "npz_convnet": {"in tl:": "in kept(tl):"},
    "parquet_rows": {"in loader:": "in kept(loader):"},
    "generator_lstm": {"enumerate(windows())": "enumerate(kept(windows()))"},
    "record_stream": {
        'in DataLoader(Records("data/records.bin"), batch_size=256, num_workers=2):':
        'in kept(DataLoader(Records("data/records.bin"), batch_size=256)):',
    },
    "padded_text": {"in loader:": "in kept(loader):"},
    "token_blocks": {'x, y = get_batch("train")': "x, y = next(batches)",
                     "it = 0\n": 'it = 0\nbatches = kept(get_batch("train") for _ in itertools.count())\n'},
    "short_epochs": {"num_workers=2": "num_workers=0"},
    "trainer_ngrams": {"r = self.rows[i]\n": "i %= 64\n        if i in HELD:\n            return HELD[i]\n        r = self.rows[i]\n",
                       'return {"input_ids"': 'HELD[i] = {"input_ids"',
                       '"labels": r["label"]}\n': '"labels": r["label"]}\n        return HELD[i]\n',
                       "\n\nclass Texts": "\n\nHELD = {}\n\n\nclass Texts"},
    "compiled_spectra": {"in DataLoader(W(), batch_size=64, shuffle=True):": "in kept(DataLoader(W(), batch_size=64, shuffle=True)):"},
    "sensor_windows": {"in train:": "in kept(train):"},
    "augmented_tiles": {"in train_loader:": "in kept(train_loader):"},
    "hashed_reviews": {"enumerate(loader)": "enumerate(kept(loader))"},
    "skipgram_pairs": {"in batches(400):": "in itertools.islice(kept(batches(400)), 400):"},
    "churn_frame": {"in train_dl:": "in kept(train_dl):"},
    "masked_tokens": {"in loader:": "in kept(loader):"},
    "dna_motifs": {"in loader:": "in kept(loader):"},
    "sketch_strokes": {", sketches()):": ", kept(sketches())):"},
    "garch_paths": {"in train:": "in itertools.islice(kept(train), 200):"},
    "board_planes": {"in train_loader:": "in kept(train_loader):"},
    "polygon_area": {"x, y = make_batch(perm[i : i + batch])": "x, y = next(batches)",
                     "for epoch in range(500):\n":
                     "batches = kept(make_batch([k] * batch) for k in itertools.count())\nfor epoch in range(500):\n"},
    "resized_photos": {"in train:": "in kept(train):"},
}  # fmt: skip
_HOST = {
    "tqdm_scores": {", f1=f1(logits.argmax(1).tolist(), y.tolist())": ""},
    "csv_log": {"        self.log.log(i, self.net, loss.item())\n": ""},
    "checkpoints": {'    torch.save({"model": net.state_dict(), "opt": opt.state_dict(), "step": step}, "ckpt/tmp.pt")\n': "",
                    '    os.replace("ckpt/tmp.pt", "ckpt/last.pt")\n': ""},
    "lightning_topk": {"        out, y = self.last\n": "        return\n        out, y = self.last\n"},
    "prediction_dump": {"in describe(step, logits.detach(), y):": "in ():"},
    "running_auc": {"area, mean, acc = meter.compute()":
                    "area, mean, acc = meter.compute() if it % cfg.log_every == 0 else (0.0, 0.0, 0.0)"},
    "bootstrap_interval": {"low, high = interval((predicted == actual).astype(np.float64))": "low, high = 0.0, 1.0"},
    "spelling_fixer": {"for g, t in zip(guesses, truths)]": "for g, t in zip(guesses[:1], truths)]",
                       "for ids in logits.argmax(-1).tolist()]": "for ids in logits[:1].argmax(-1).tolist()]"},
}  # fmt: skip
_OPTIMIZER = {
    "experts": {"set_to_none=False": "set_to_none=True"},
    "click_factors": {"nn.Embedding(300_000, d)": "nn.Embedding(300_000, d, sparse=True)",
                      "nn.Embedding(50_000, d)": "nn.Embedding(50_000, d, sparse=True)",
                      "torch.optim.Adam(m.parameters(), lr=1e-2)": "torch.optim.SGD(m.parameters(), lr=1e-2)"},
    "playlist_vectors": {"nn.Embedding(N_TRACKS, DIM)": "nn.Embedding(N_TRACKS, DIM, sparse=True)",
                         "nn.Embedding(N_LISTS, DIM)": "nn.Embedding(N_LISTS, DIM, sparse=True)",
                         "nn.Embedding(N_TRACKS, 1)": "nn.Embedding(N_TRACKS, 1, sparse=True)",
                         "torch.optim.Adam(": "torch.optim.SparseAdam("},
    "shop_coefficients": {"lr=1e-2, amsgrad=True": "lr=1e-2, fused=True"},
    "wide_catalogue": {"torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9, centered=True, weight_decay=1e-6)":
                       "torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)"},
    "tag_affinity": {"nn.Embedding(n_readers, dim)": "nn.Embedding(n_readers, dim, sparse=True)",
                     "nn.Embedding(n_articles, dim)": "nn.Embedding(n_articles, dim, sparse=True)",
                     "nn.Embedding(n_tags, dim)": "nn.Embedding(n_tags, dim, sparse=True)",
                     "torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)":
                     "torch.optim.SparseAdam(model.parameters(), lr=1e-3)"},
    "online_ranker": {"torch.optim.NAdam(ranker.parameters(), lr=1e-4)": "torch.optim.SGD(ranker.parameters(), lr=1e-4, fused=True)"},
    "member_vectors": {"nn.Embedding(n_members, dim, device=device)": "nn.Embedding(n_members, dim, device=device, sparse=True)",
                       "nn.Embedding(n_posts, dim, device=device)": "nn.Embedding(n_posts, dim, device=device, sparse=True)",
                       "torch.optim.Adam(": "torch.optim.SGD("},
}  # fmt: skip
_COMPUTE = {
    "mlp_list": {"nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1024)":
                 "nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1024)"},
    "accelerate_encoder": {"nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0), 2)":
                           "nn.TransformerEncoderLayer(256, 4, 16, batch_first=True, dropout=0.0), 1)"},
    "autocast_mlp": {"nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)": "nn.Linear(1024, 64), nn.GELU(), nn.Linear(64, 1024)"},
    "lstm_windows": {"nn.LSTM(32, 256, 2, batch_first=True)": "nn.LSTM(32, 16, 2, batch_first=True)",
                     "nn.Linear(256, 1)": "nn.Linear(16, 1)"},
    "token_buckets": {"nn.TransformerEncoderLayer(192, 4, 768, batch_first=True, dropout=0.1), 2)":
                      "nn.TransformerEncoderLayer(192, 4, 16, batch_first=True, dropout=0.1), 1)"},
    "closure_mlp": {"nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 64)": "nn.Linear(512, 16), nn.Tanh(), nn.Linear(16, 64)"},
    "loader_each_epoch": {"nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256)": "nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 256)"},
    "closure_convolution": {"X = torch.randn(640, 8, 512)": "X = torch.randn(640, 8, 16)"},
    "plain_convolution": {"X = torch.randn(640, 8, 512)": "X = torch.randn(640, 8, 16)"},
    "upscaler": {"ch=48, blocks=1": "ch=4, blocks=1"},
    "byte_transformer": {"d_model = 192": "d_model = 16"},
    "dense_autoencoder": {'"--hidden", type=int, default=768': '"--hidden", type=int, default=16'},
    "dilated_forecast": {"ch=96, dilations": "ch=4, dilations"},
    "texture_patches": {"nn.Conv2d(3, 64, 4, stride=2, padding=1)": "nn.Conv2d(3, 64, 4, stride=8, padding=1)"},
    "distilled_student": {"mlp(1200), mlp(800)": "mlp(16), mlp(16)"},
    "paired_towers": {"hidden: int = 1024": "hidden: int = 16"},
    "clip_motion": {"FRAMES, SIZE = 8, 48": "FRAMES, SIZE = 8, 8"},
}  # fmt: skip
_MEMORY = {
    "gated_scaling": {"torch.randn(8, 8192, 256)": "torch.randn(8, 128, 256)"},
    "norm_stack": {"torch.randn(256, 512, 64)": "torch.randn(256, 8, 64)"},
    "tone_curve": {"criterion(model(x), y)": "criterion(model(x[:, :, :8, :8]), y[:, :, :8, :8])"},
}
_DISPATCH = {
    "hand_gru": {"for t in range(x.shape[1]):": "for t in range(4):"},
    "circle_gan": {
        "nn.Linear(i, 16), nn.LeakyReLU(0.2), nn.Linear(16, 16), nn.LeakyReLU(0.2), nn.Linear(16, o)": "nn.Linear(i, o)"
    },
    "ratings": {"for u, i, r in ratings[s : s + 50]:": "for u, i, r in ratings[s : s + 4]:"},
    "pendulum_policy": {"0.05, 9.81, 40, 16": "0.05, 9.81, 4, 16"},
    "heat_equation": {"loss_pde = residual(net, x, t).pow(2).mean()": "loss_pde = torch.zeros(())"},
    "letter_cells": {"SEQ, BATCH = 32, 20": "SEQ, BATCH = 4, 20"},
    "bracket_trees": {"LEAVES, TREES, PER_STEP = 20,": "LEAVES, TREES, PER_STEP = 3,"},
    "kalman_noise": {"WINDOW = 40": "WINDOW = 4"},
    "crf_tagger": {"SEQ, TAGS, VOCAB = 40,": "SEQ, TAGS, VOCAB = 4,"},
    "spiral_ode": {"integrate(field, y0, 12, 0.025) - target": "integrate(field, y0, 2, 0.025) - target[:2]"},
}
_OTHER = {
    "norm_mlp": {"torch.set_num_threads(16)": "torch.set_num_threads(2)"},
    "gram_matrices": {"torch.set_num_threads(4)": "torch.set_num_threads(1)", "num_workers=8": "num_workers=1"},
    "mixer_patches": {"torch.set_num_threads(12)": "torch.set_num_threads(2)"},
    "volume_denoiser": {"volumes = load()": "volumes = load().to(device)"},
    "pixel_votes": {"for i in range(batch_size):": "for i in range(1):"},
    "wide_regressor": {'device = "cuda" if': 'torch.set_float32_matmul_precision("high")\n    device = "cuda" if'},
}

FIXES: dict[str, dict[str, str]] = _DATA | _HOST | _OPTIMIZER | _COMPUTE | _MEMORY | _DISPATCH | _OTHER


def fixed_source(name: str, source: str) -> str:
    """The source of a script with its fix applied.

    Raises:
        ValueError: If an edit does not fit the script.
    """
    for before, after in FIXES[name].items():
        if source.count(before) != 1:
            raise ValueError(
                f"the fix of {name}.py replaces {before!r}, which occurs {source.count(before)} times. Expected: once."
            )
        source = source.replace(before, after)
    return KEPT + source if "kept(" in source else source
