"""What does a training step of the TFA model cost on a CPU, as its authors write it, without unused outputs, and banded?

One thread, process CPU time, in turns. `windows` and `runs` are the authors' model with the same gradients; `banded` is another
one, with one token a label.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import record
from benchmarks.before import tfa_loop
from stoker.recipes.tfa.model import build_model

QUESTION = "What does a training step of the TFA model cost on a CPU, as its authors write it, without unused outputs, and banded?"
LENGTH, FEATURES = 48, 55
RUNS, RUN = 2, 240


def main() -> None:
    """All sides, as labels a second."""
    options = record.arguments(QUESTION)
    torch.set_num_threads(1)
    batch, rounds = (16, 1) if options.small else (256, options.rounds or 5)
    torch.manual_seed(0)
    mean, std = torch.zeros(FEATURES), torch.ones(FEATURES)
    plain = tfa_loop.Tfa(mean, std)
    given: dict[str, Any] = {"num_features": FEATURES, "mean": mean, "std": std, "length": LENGTH}
    ours = build_model("tfa", **given)
    ours.load_state_dict(plain.state_dict())
    banded = build_model("banded", **given)
    large = build_model("banded", width=128, layers=3, heads=8, hidden=256, **given)
    run = torch.randn(1, batch + LENGTH - 1, FEATURES)
    windows = run[0].unfold(0, LENGTH, 1).transpose(1, 2).contiguous()
    labels = {"authors": batch, "windows": batch, "runs": batch}
    sides = {"authors": step_of(plain, windows), "windows": step_of(ours, windows), "runs": step_of(ours, run)}
    for name, model in (("banded", banded), ("banded at the authors' sizes", large)):
        labels[name] = RUNS * RUN
        sides[name] = step_of(model, torch.randn(RUNS, model.reach - 1 + RUN, FEATURES), before=model.reach - 1)
    seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
    each = {name: [one / labels[name] for one in values] for name, values in seconds.items()}
    answer = {
        "microseconds of CPU time a label": {name: record.spread([1e6 * one for one in values]) for name, values in each.items()},
        "faster than the authors' step": {name: record.ratio(each["authors"], each[name]) for name in each if name != "authors"},
        "windows of a batch": batch,
        "labels of a banded step": RUNS * RUN,
    }
    print(answer) if options.small else record.save("bench_tfa_step", QUESTION, answer)


def step_of(model: nn.Module, x: torch.Tensor, *, before: int = 0) -> Callable[[], None]:
    """Forward, backward, clipping and update. The logits of rows `before` those with labels do not count."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with torch.no_grad():
        y = (torch.rand_like(model(x)[:, before:]) < 0.5).float()

    def step() -> None:
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, before:], y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
