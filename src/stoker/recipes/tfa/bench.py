"""The bench: the authors' loop and ours side by side, on the machine at hand, in labels a second.

their model    the same weights and windows: cut in Python and computed whole, against a feed and only what is read
banded         their loop against the model of one token a label: another model, and the default of the recipe
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

import stoker
from stoker.recipes.comparison import Line, interleave
from stoker.recipes.tfa import before
from stoker.recipes.tfa.banded import Banded
from stoker.recipes.tfa.build import TfaModel, build_model

LENGTH, FEATURES = 48, 55
RUN = 240
"""Labels of one run of the banded model."""
RATE = 1e-4


def run(*, batch: int, rounds: int, device: str, tell: Callable[[str], None]) -> Iterator[Line]:
    """The lines one after the other."""
    threads = torch.get_num_threads()
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2 * batch + LENGTH - 1, FEATURES), dtype=np.float32)
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

        def authors() -> None:
            before.train(theirs, rows, labels, pos_weight=1.0, batch=batch, length=LENGTH, num_steps=1, device=device)

        store = stoker.Store.from_arrays(lengths=[len(rows)], x=rows, y=labels)
        for name, model, count in (("their model", ours, batch), ("banded, one token a label", banded, 2 * RUN)):
            tell(name)
            view = stoker.Windows(LENGTH if model is ours else RUN + model.reach - 1)
            feed = stoker.Feed(store, view, batch_size=batch if model is ours else 2, order=stoker.Shuffle(0), device=device)
            seconds = interleave(authors, _step(model, feed, device), rounds=rounds)
            rates = [[labels_ / one for one in side] for labels_, side in zip((batch, count), seconds, strict=True)]
            note = f"logits within {apart:.0e}" if model is ours else "another model: see docs/recipes/tfa.md for its quality"
            yield Line(what=name, unit="labels/s", before=rates[0], after=rates[1], is_rate=True, note=note)
    finally:
        torch.set_num_threads(threads)


def _step(model: TfaModel, feed: stoker.Feed, device: str) -> Callable[[], None]:
    """One step of ours: a batch of the feed, forward, backward, clipping and update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    skipped = model.reach - 1 if isinstance(model, Banded) else 0
    batches = iter(feed)

    def step() -> None:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(feed)
            batch = next(batches)
        wanted = batch["y"][:, skipped:, 0] if skipped else batch["y"][:, -1]
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch["x"])[:, skipped:], wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()

    return step
