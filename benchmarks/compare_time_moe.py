"""The bench: the authors' way and ours side by side, on the machine at hand.

samples    their data set against ours, over their own binary folder: short series, and one long one
step       their model against ours: the same weights, the same batch, forward, backward and update
training   whole steps on short series, loader and model: targets per second
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import stoker
from benchmarks.before.time_moe_original import OriginalTimeMoe
from benchmarks.before.timemoe_dataset import TimeMoEDataset, TimeMoEWindowDataset, collate
from benchmarks.comparison import Line, Rates, interleave, windows_for
from stoker import _disk
from stoker.recipes.time_moe.batches import Batches
from stoker.recipes.time_moe.dataset import TimeMoeDataset
from stoker.recipes.time_moe.layers import SIZES, Size
from stoker.recipes.time_moe.model import TimeMoe, time_moe_loss, to_official
from stoker.recipes.time_moe.training import BETAS, EPS, make_rows, make_settings

Array = npt.NDArray[Any]

RATE, DECAY, CLIP = 1e-4, 0.1, 1.0
SAMPLED = 64
"""Samples of one measured call."""
SHORT_POINTS = 302
"""Points of a short series, in the mean: those of kdd_cup_2018."""
GPU_WINDOW = 10


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured."""

    size: str
    length: int
    batch_size: int
    rounds: int
    long_points: int
    device: str

    @classmethod
    def fitting(cls, **given: Any) -> Plan:
        """What was not given as the machine can take it in a minute: all of it on a GPU, a small model on a CPU."""
        on_gpu = torch.cuda.is_available()
        small = {"size": "tiny", "length": 512, "batch_size": 4, "rounds": 5, "long_points": 2**17, "device": "cpu"}
        large = {"size": "50m", "length": 2048, "batch_size": 8, "rounds": 5, "long_points": 2**20, "device": "cuda"}
        chosen = {name: value for name, value in given.items() if value is not None}
        if not on_gpu and chosen.get("size", "tiny") != "tiny":
            small |= {"length": 256, "batch_size": 1, "rounds": 2}
        return cls(**{**(large if on_gpu else small), **chosen})

    @property
    def gpu_steps(self) -> int:
        """Of our training on a GPU: a window of steps per round."""
        return windows_for(self.rounds) * GPU_WINDOW

    @property
    def shape(self) -> Size:
        """Of the model."""
        return SIZES[self.size]


def run(plan: Plan, scratch: Path, report: Callable[[str], None]) -> Iterator[Line]:
    """The lines one after the other; `scratch` is a folder for the data, which is removed again."""
    threads = torch.get_num_threads()
    try:
        if plan.device == "cpu":
            torch.set_num_threads(1)  # several would wait for each other wherever others work too
        report("making series")
        long = write_folder(scratch / "long", [walk(plan.long_points, seed=1)])
        short = write_folder(scratch / "short", short_series(plan))
        equal = write_folder(scratch / "segments", [walk(plan.length, seed=number) for number in range(512)])
        report("samples of their folder")
        yield samples(plan, equal, f"sample of a {plan.length:,}-point series")
        report("samples of a long series")
        yield samples(plan, long, f"sample of a {plan.long_points:,}-point series")
        report("steps of the model")
        yield steps(plan, equal)
        report("training on short series")
        yield training(plan, short)
    finally:
        torch.set_num_threads(threads)
        _disk.remove_folder(scratch)


def walk(num_points: int, *, seed: int) -> Array:
    """A random walk with a level of its own."""
    rng = np.random.default_rng(seed)
    return (rng.normal(scale=50) + np.cumsum(rng.standard_normal(num_points, dtype=np.float32))).astype(np.float32)


def short_series(plan: Plan) -> list[Array]:
    """Series of about 302 points (of a sixth of a row, where rows are short)."""
    rng = np.random.default_rng(0)
    mean = min(SHORT_POINTS, plan.length // 6)
    lengths = np.maximum(8, rng.lognormal(np.log(mean) - 0.125, 0.5, 40 * plan.batch_size * plan.length // mean // 4))
    return [walk(int(length), seed=number) for number, length in enumerate(lengths)]


def write_folder(folder: Path, series: list[Array]) -> Path:
    """A binary folder as the authors' tools write it."""
    _disk.make_folder(folder)
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in series])]).tolist()
    scales = [{"offset": offset, "length": len(one)} for offset, one in zip(offsets[:-1], series, strict=True)]
    name = "data-1-of-1.bin"
    meta = {"num_sequences": len(series), "dtype": "float32", "files": {name: offsets[-1]}, "scales": scales}
    _disk.write_file(folder / name, np.concatenate(series).tobytes(), durable=False)
    _disk.write_file(folder / "meta.json", json.dumps(meta).encode(), durable=False)
    return folder


def samples(plan: Plan, folder: Path, what: str) -> Line:
    """Microseconds of one normalised sample in a batch, by the authors' chain and by ours."""
    theirs = TimeMoEWindowDataset(TimeMoEDataset(folder, "zero"), plan.length)
    ours = TimeMoeDataset(folder, plan.length, normalization_method="zero")
    numbers = np.random.default_rng(0).integers(0, len(ours), SAMPLED).tolist()

    def before() -> dict[str, Any]:
        return collate([theirs[number] for number in numbers])

    def after() -> dict[str, Any]:
        return ours.collate(ours.__getitems__(numbers))

    same = all(torch.equal(before()[name], tensor) for name, tensor in after().items())
    seconds = interleave(before, after, rounds=plan.rounds, count=SAMPLED)
    first, second = ([1e6 * one for one in side] for side in seconds)
    return Line(what=what, unit="µs", before=first, after=second, note="equal bit for bit" if same else "NOT equal")


def models(plan: Plan) -> tuple[OriginalTimeMoe, TimeMoe]:
    """Both models with the same weights."""
    torch.manual_seed(0)
    ours, theirs = TimeMoe(plan.shape), OriginalTimeMoe(plan.shape)
    theirs.load_state_dict(to_official(ours.state_dict(), plan.shape))
    return theirs.to(plan.device), ours.to(plan.device)


def authors_step(model: OriginalTimeMoe, *, autocast: bool) -> Callable[[dict[str, Any]], torch.Tensor]:
    """The authors' loop: eager, AdamW as torch makes it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY)
    device = next(model.parameters()).device

    def step(batch: dict[str, Any]) -> torch.Tensor:
        there = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
            loss: torch.Tensor = model(there["input_ids"], there["labels"], there["loss_masks"])
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class Ours:
    """Our steps: plain ones on a CPU, those of the trainer (compiled layers, a CUDA graph, bf16) on a GPU."""

    def __init__(self, model: TimeMoe) -> None:
        self._model = model
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)

    def step(self, batch: dict[str, Any]) -> torch.Tensor:
        """One step on a CPU."""
        loss = time_moe_loss(self._model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def seconds(self, batches: Batches, rounds: int) -> list[float]:
        """Of a step on a GPU, in windows of ten, without those in which it compiles and captures."""
        kept = Rates()
        self._model.compile(dynamic=False)
        stoker.Trainer(
            self._model, time_moe_loss, self._optimizer, precision="bf16", graph=True, compile=False, max_grad_norm=CLIP,
            loggers=[kept], log_every=GPU_WINDOW, device=batches.device, progress=False,
        ).fit(batches)  # fmt: skip
        return kept.seconds[-rounds:]


def steps(plan: Plan, folder: Path) -> Line:
    """Milliseconds of a step on one and the same batch."""
    theirs, model = models(plan)
    rows = make_rows(make_settings({"data": str(folder), "length": plan.length, "samples": "compat"}))
    batches = Batches(rows.train, batch_size=plan.batch_size, steps=plan.gpu_steps, device=plan.device)
    batch = next(iter(batches))
    as_theirs = {"input_ids": batch["x"], "labels": batch["y"], "loss_masks": batch["mask"].int()}
    with torch.no_grad():
        losses = [float(theirs(*as_theirs.values())), float(time_moe_loss(model, batch))]
    before = authors_step(theirs, autocast=plan.device != "cpu")
    kind = "fp32" if plan.device == "cpu" else "bf16"
    what = f"step of {plan.size}, {plan.batch_size} x {plan.length:,}, {kind}"
    note = f"losses {losses[0]:.6f}, {losses[1]:.6f} in fp32"
    ours = Ours(model)
    if plan.device == "cpu":
        seconds = interleave(lambda: before(as_theirs), lambda: ours.step(batch), rounds=plan.rounds)
    else:
        seconds = _on_gpu(lambda: before(as_theirs), plan.rounds), ours.seconds(batches, plan.rounds)
    first, second = ([1e3 * one for one in side] for side in seconds)
    return Line(what=what, unit="ms", before=first, after=second, note=note)


def _on_gpu(before: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of their steps, one by one."""

    def run() -> None:
        before()
        torch.cuda.synchronize()

    return interleave(run, lambda: None, rounds=rounds)[0]


def training(plan: Plan, folder: Path) -> Line:
    """Targets per second of whole steps on short series: theirs one per row, ours packed."""
    theirs, model = models(plan)
    dataset = TimeMoEWindowDataset(TimeMoEDataset(folder, "zero"), plan.length)
    order = iter(np.random.default_rng(0).permutation(len(dataset)).tolist() * 100)
    step = authors_step(theirs, autocast=plan.device != "cpu")
    rows = make_rows(make_settings({"data": str(folder), "length": plan.length, "valid": 0.0}))
    batches = Batches(
        rows.train, batch_size=plan.batch_size, steps=10**6 if plan.device == "cpu" else plan.gpu_steps, device=plan.device
    )
    seen: dict[str, list[int]] = {"before": [], "after": []}
    entries = iter(batches)
    ours = Ours(model)

    def before() -> None:
        batch = collate([dataset[next(order)] for _ in range(plan.batch_size)])
        seen["before"].append(int(batch["loss_masks"].sum()))
        step(batch)

    def after() -> None:
        batch = next(entries)
        seen["after"].append(int(batch["mask"].sum()))
        ours.step(batch)

    if plan.device == "cpu":
        seconds = interleave(before, after, rounds=plan.rounds)
    else:
        seconds = _on_gpu(before, plan.rounds), ours.seconds(batches, plan.rounds)
        seen["after"] = [round(plan.batch_size * plan.length * rows.useful)] * (plan.rounds + 1)
    found = [
        [targets / one for targets, one in zip(seen[name][1:], side, strict=True)]
        for name, side in zip(("before", "after"), seconds, strict=True)
    ]
    share = sum(seen["before"]) / (len(seen["before"]) * plan.batch_size * plan.length)
    return Line(
        what="training on short series",
        unit="targets/s",
        before=found[0],
        after=found[1],
        is_rate=True,
        note=f"targets: {share:.0%} of positions before, {rows.useful:.0%} after",
    )
