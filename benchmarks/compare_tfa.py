"""The bench: the authors' loop and ours side by side, on the machine at hand, in labels a second.

their model    the same weights and windows: cut in Python and computed whole, against a feed and only what is read
banded         their loop against the model of one token a label: another model, and the default of the recipe
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import stoker
from benchmarks.before import tfa_loop as before
from benchmarks.comparison import Line, Rates, interleave, windows_for
from stoker.recipes.tfa.model import Banded, TfaModel, build_model

LENGTH, FEATURES = 48, 55
RUN = 240
"""Labels of one run of the banded model."""
RATE, CLIP = 1e-4, 1.0
GPU_RUNS, GPU_WINDOW, GPU_AUTHORS = 64, 50, 10
"""On a GPU: runs of a banded batch, steps of a window of ours, and steps of one call of theirs."""


def run(*, batch: int, rounds: int, device: str, report: Callable[[str], None]) -> Iterator[Line]:
    """The lines one after the other."""
    threads = torch.get_num_threads()
    rng = np.random.default_rng(0)
    steps = windows_for(rounds) * GPU_WINDOW
    rows = rng.standard_normal(((2 if device == "cpu" else steps) * batch + LENGTH - 1, FEATURES), dtype=np.float32)
    labels = (rows[:, :1] > 0).astype(np.float32)
    mean, std = torch.zeros(FEATURES), torch.ones(FEATURES)
    torch.manual_seed(0)
    theirs = before.Tfa(mean, std).to(device)
    ours = build_model("tfa", num_features=FEATURES, mean=mean, std=std, length=LENGTH).to(device)
    ours.load_state_dict(theirs.state_dict())
    banded = build_model("banded", num_features=FEATURES, mean=mean, std=std, length=LENGTH).to(device)
    windows = torch.from_numpy(rows[: batch + LENGTH - 1]).unfold(0, LENGTH, 1).transpose(1, 2).to(device)
    with torch.no_grad():
        apart = float((theirs(windows) - ours(windows)).abs().max())
    try:
        if device == "cpu":
            torch.set_num_threads(1)  # several would wait for each other wherever others work too

        count = 1 if device == "cpu" else GPU_AUTHORS

        def authors() -> None:
            before.train(theirs, rows, labels, pos_weight=1.0, batch=batch, length=LENGTH, num_steps=count, device=device)
            if device != "cpu":
                torch.cuda.synchronize()

        store = stoker.Store.from_arrays(lengths=[len(rows)], x=rows, y=labels)
        runs = 2 if device == "cpu" else GPU_RUNS
        for name, model, taken in (("their model", ours, batch), ("banded, one token a label", banded, runs)):
            report(name)
            view = stoker.Windows(LENGTH if model is ours else RUN + model.reach - 1)
            order = stoker.Shuffle(0)
            if device == "cpu":
                feed = stoker.Feed(store, view, batch_size=taken, order=order, device=device)
                seconds = interleave(authors, _step(model, feed), rounds=rounds, count=1)
            else:
                feed = stoker.Feed(store, view, batch_size=taken, order=order, device=device, residency="device", last_batch="drop")
                seconds = interleave(authors, lambda: None, rounds=rounds, count=count)[0], _on_gpu(model, feed, steps)[-rounds:]
            made = batch, batch if model is ours else runs * RUN
            rates = [[labels_ / one for one in side] for labels_, side in zip(made, seconds, strict=True)]
            note = f"logits within {apart:.0e}" if model is ours else "another model: see docs/recipes/tfa.md for its quality"
            yield Line(what=name, unit="labels/s", before=rates[0], after=rates[1], is_rate=True, note=note)
    finally:
        torch.set_num_threads(threads)


def _loss_of(model: TfaModel) -> Callable[[nn.Module, Any], torch.Tensor]:
    """The loss over the labels that a batch has for a model."""
    skipped = model.reach - 1 if isinstance(model, Banded) else 0

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        wanted = batch["y"][:, skipped:, 0] if skipped else batch["y"][:, -1]
        return nn.functional.binary_cross_entropy_with_logits(model(batch["x"])[:, skipped:], wanted)

    return loss


def _on_gpu(model: TfaModel, feed: stoker.Feed, steps: int) -> list[float]:
    """Seconds of a step of the trainer: bf16, compiled, a CUDA graph."""
    kept = Rates()
    stoker.Trainer(
        model,
        _loss_of(model),
        torch.optim.AdamW(model.parameters(), lr=RATE, fused=True),
        precision="bf16",
        graph=True,
        compile=True,
        max_grad_norm=CLIP,
        loggers=[kept],
        log_every=GPU_WINDOW,
        progress=False,
    ).fit(feed, epochs=-(-steps // len(feed)))
    return kept.seconds


def _step(model: TfaModel, feed: stoker.Feed) -> Callable[[], None]:
    """One step of ours on a CPU: a batch of the feed, forward, backward, clipping and update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    loss_of, batches = _loss_of(model), iter(feed)

    def step() -> None:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(feed)
            batch = next(batches)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return step
