"""Trainings that one process does alone, and several do together; each returns what must then be the same.

`be_rank` is one rank: it does all training runs of its request, and leaves a report.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.fsdp  # here, so that the process that ranks are forked from imports it once
from tests.harness.flat_feed import flat_feed
from tests.train.training import Kept, Pair, adamw, network, pairs, trainer_of
from torch import nn
from torchmetrics import MeanAbsoluteError

import stoker
from stoker import Trainer
from stoker.errors import StokerError
from stoker.train import AUC, Execution, autotune
from stoker.train import resume as contents

Report = dict[str, Any]
ROWS, WIDTH = 16, 6


def world() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def shares(batches: list[Pair]) -> list[Pair]:
    """The rows of each batch that are this rank's."""
    rank, size = world()
    return [(x.chunk(size)[rank], y.chunk(size)[rank]) for x, y in batches]


def marked(counts: list[int]) -> list[dict[str, torch.Tensor]]:
    """Batches of which so many rows are samples, the first ones; the others hold what would be seen."""
    rank, size = world()
    made = []
    for (x, y), count in zip(pairs(len(counts)), counts, strict=True):
        valid = torch.arange(ROWS) < count
        whole = {"x": torch.where(valid[:, None], x, 7.0), "y": torch.where(valid[:, None], y, 1e3), "valid": valid}
        made.append({name: tensor.chunk(size)[rank] for name, tensor in whole.items()})
    return made


def mean_of_samples(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss as people write it: no number where there is no sample."""
    squares = (model(batch["x"]) - batch["y"]).square()[:, 0]
    total: torch.Tensor = torch.where(batch["valid"], squares, 0).sum() / batch["valid"].sum()
    return total


def report(trainer: Trainer, kept: Kept, **more: Any) -> Report:
    weights = contents.take(trainer._parts, {})["model"]
    average = contents.take(trainer._parts, {}).get("ema", {}).get("average", {})
    flat = {"weights": weights, "ema": average} if world()[0] == 0 else {}
    numbers = {name: [value for one in tree.values() for value in one.flatten().tolist()] for name, tree in flat.items()}
    return {"losses": kept.losses(), **numbers, **more}


def fitted(batches: Any, loss: Any = None, *, model: nn.Module | None = None, epochs: int = 2, **options: Any) -> Report:
    model, kept = model or network(), Kept()
    optimizer = options.pop("optimizer", None) or adamw(model)
    trainer = trainer_of(model, loss, optimizer, callbacks=[kept], log_every=1, **options)
    valid = options.get("valid")
    result = trainer.fit(batches, epochs=epochs, valid=valid)
    return report(trainer, kept, step=result.step, stopped=result.stopped)


def plain(folder: Path, kind: Any) -> Report:
    """Clipping by the norm of the whole, an average, and a schedule."""
    return fitted(shares(pairs()), max_grad_norm=0.5, ema=0.9, schedule=stoker.train.Cosine(warmup=3), parallel=kind)


def unequal(folder: Path, kind: Any) -> Report:
    """Ranks have 8 and 8, 8 and 3, 8 and 0, 5 and 0 samples."""
    return fitted(marked([16, 11, 8, 5]), mean_of_samples, parallel=kind)


def unguarded(folder: Path, kind: Any) -> Report:
    """The same, without the row that poses as a sample."""
    from stoker.train import distributed

    guards = distributed.with_a_sample, distributed.with_a_sample
    distributed.with_a_sample = distributed.with_a_sample = lambda batch: batch
    try:
        return unequal(folder, kind)
    except stoker.errors.NonFiniteError as error:
        return {"error": str(error)}
    finally:
        distributed.with_a_sample, distributed.with_a_sample = guards


def accumulated(folder: Path, kind: Any) -> Report:
    """Three micro-batches an update, unequal ones, and one left over."""
    return fitted(marked([16, 4, 11, 8, 5, 16, 9]), grad_accum_steps=3, max_grad_norm=0.5, parallel=kind)


def unused(folder: Path, kind: Any) -> Report:
    """A weight that takes no part."""
    model = network()
    model.register_parameter("idle", nn.Parameter(torch.ones(3)))
    return fitted(
        shares(pairs()), lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]), model=model, parallel=kind
    )


def guarded(folder: Path, kind: Any, *, guard: Any = "stop") -> Report:
    """One number of the last rank's rows is infinite."""
    batches, model, kept = pairs(6), network(), Kept()
    batches[3][0][-1, 2] = float("inf")
    trainer = trainer_of(model, callbacks=[kept], log_every=1, ema=0.9, guard=guard, parallel=kind)
    try:
        trainer.fit(shares(batches))
    except stoker.errors.NonFiniteError as error:
        return report(trainer, kept, error=str(error))
    return report(trainer, kept)


def skipping(folder: Path, kind: Any) -> Report:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return guarded(folder, kind, guard="skip")


def scalars(folder: Path, kind: Any) -> Report:
    """Further numbers that a loss returns are those of all samples."""

    def loss(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        mean = mean_of_samples(model, batch)
        return {"loss": mean, "again": mean.detach() + 1}

    model, kept = network(), Kept()
    trainer_of(model, loss, callbacks=[kept], log_every=1, parallel=kind).fit(marked([16, 11, 8, 5]))
    return {"losses": kept.losses(), "again": [values["again"] for _, values in kept.lines if "again" in values]}


def evaluated(folder: Path, kind: Any) -> Report:
    """Metrics of all samples, where ranks have unequal numbers of them."""
    model = network()
    trainer = trainer_of(model, metrics={"mae": MeanAbsoluteError(), "auc": AUC()}, parallel=kind)
    batches = marked([16, 11, 8, 5])
    for batch in batches:
        batch["y"] = (batch["y"] > 0).float()
    return {"values": trainer.evaluate(batches)}


def normalised(folder: Path, kind: Any) -> Report:
    """Running statistics are those of all ranks."""
    model = network(norm=True)
    fitted(shares(pairs()), model=model, parallel=kind)
    return {"mean": model[0].running_mean.tolist(), "seen": int(model[0].num_batches_tracked)}


def chosen(folder: Path, kind: Any) -> Report:
    """What the first rank measures holds for all. All updates may go into it, so that a short run is enough."""
    worth, share, autotune.WORTH_MEASURING, autotune.LARGEST_SHARE = autotune.WORTH_MEASURING, autotune.LARGEST_SHARE, 1, 1.0
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    execution = Execution(measured=True, fused=False, compile=False, parallel=kind)
    trainer = Trainer(model, nn.MSELoss(), optimizer, progress=False, execution=execution)
    epochs = 5 if kind != "fsdp" else 1  # long enough to be measured; shards have nothing to choose from
    result = trainer.fit(shares(pairs()), epochs=epochs)
    autotune.WORTH_MEASURING, autotune.LARGEST_SHARE = worth, share
    return {"setup": str(result.setup), "trials": {trial.name: trial.reason for trial in result.trials}}


def refused(folder: Path, kind: Any) -> Report:
    """Unequal numbers of batches; a folder that only the first rank looks at; models that differ; a kind that is none."""
    rank, _ = world()
    found = []
    makers: list[Callable[[], Any]] = [
        lambda: trainer_of(network(), parallel=kind).fit(shares(pairs(12 - rank))),
        lambda: [trainer_of(network(), parallel=kind, folder=folder / f"twice-{kind}").fit(shares(pairs(2))) for _ in range(2)],
        lambda: trainer_of(network(seed=0) if rank else nn.Linear(6, 1), parallel=kind),
        lambda: trainer_of(network(), parallel="all"),
    ]
    for make in makers:
        try:
            make()
        except StokerError as error:
            found.append(f"{type(error).__name__}: {error}")
    return {"errors": found}


def parted(folder: Path, kind: Any) -> Report:
    """Random numbers differ between ranks; weights do not, though ranks began with others."""
    model, kept = network(seed=world()[0], dropout=0.5), Kept()
    trainer = trainer_of(model, callbacks=[kept], parallel=kind)
    trainer.fit(shares(pairs()))
    full = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
    return {"random": torch.rand(3).tolist(), "own": [one.flatten().tolist() for one in full]}


def budgeted(folder: Path, kind: Any) -> Report:
    result = trainer_of(network(), parallel=kind, folder=folder / f"budget-{kind}").fit(shares(pairs()), max_seconds=1e-6)
    return {"stopped": result.stopped, "step": result.step}


def called_back(folder: Path, kind: Any) -> Report:
    """One rank asks to stop after the first epoch."""

    class Stop:
        def on_epoch_end(self, report: Any) -> None:
            if world()[0] == 1:
                report.stop()

    result = trainer_of(network(), parallel=kind, callbacks=[Stop()]).fit(shares(pairs()), epochs=3)
    return {"stopped": result.stopped, "epoch": result.epoch}


def store() -> stoker.Store:
    rng = np.random.default_rng(3)
    return stoker.Store.from_arrays(x=[np.cumsum(rng.standard_normal(int(n))).astype(np.float32) for n in rng.integers(12, 30, 5)])


def feeds() -> tuple[stoker.Feed, stoker.Feed]:
    """Of 8 samples an update in all, however many ranks there are."""
    rank, size = world()
    given: Any = {"batch_size": 8 // size, "rank": rank, "world_size": size}
    data = store()
    return (
        flat_feed(data, stoker.Windows(WIDTH, horizon=1), order=stoker.Shuffle(5), **given),
        flat_feed(data, stoker.Windows(WIDTH, stride=4, horizon=1), **given),
    )


def run(
    folder: Path, kind: Any, *, dropout: float = 0.0, stop_at: int | None = None, epochs: int = 3, resume: bool = False
) -> Report:
    """A run with a folder; the last rank is asked to stop in one of its batches."""
    rank, size = world()
    model, kept, count = network(dropout=dropout), Kept(), 0
    loss = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target")

    def stop(model: nn.Module, _: Any) -> None:
        nonlocal count
        count += model.training
        if count == stop_at and model.training and rank == size - 1:
            signal.raise_signal(signal.SIGINT)

    model.register_forward_pre_hook(stop)
    train, valid = feeds()
    trainer = trainer_of(
        model, loss, callbacks=[kept], folder=folder, save_every=4, log_every=1, ema=0.9, max_grad_norm=1.0, parallel=kind
    )
    try:
        trainer.fit(train, valid=valid, epochs=epochs, resume=resume)
    except KeyboardInterrupt:
        return report(trainer, kept, stopped="signal")
    return report(trainer, kept, valid=[values["val_loss"] for _, values in kept.lines if "val_loss" in values])


def continued(folder: Path, kind: Any) -> Report:
    """The middle of a run that one process began."""
    return run(folder / f"continued-{kind}", kind, stop_at=9, resume=True)


def interrupted(folder: Path, kind: Any) -> Report:
    """A run of its own, whole, and stopped twice and resumed: the same to the last bit, random numbers included."""
    whole = run(folder / f"whole-{kind}", kind, dropout=0.3)
    own = folder / f"stopped-{kind}"
    stops = [run(own, kind, dropout=0.3, stop_at=7), run(own, kind, dropout=0.3, stop_at=9, resume=True)]
    return {"whole": whole, "stops": stops, "last": run(own, kind, dropout=0.3, resume=True)}


def waiting(folder: Path, kind: Any) -> Report:
    """Trains until a signal comes."""

    def endless() -> Iterator[Pair]:
        number = 0
        while True:
            number += 1
            if number == 30:
                (folder / f"ready-{world()[0]}").touch()
            yield shares(pairs(1))[0]

    trainer = trainer_of(network(), parallel=kind, folder=folder / "run")
    trainer.fit(endless())
    return {}


def crashing(folder: Path, kind: Any) -> Report:
    """One rank fails in its third batch."""

    def broken() -> Iterator[Pair]:
        for number, batch in enumerate(shares(pairs())):
            if number == 3 and world()[0] == 1:
                raise RuntimeError("a fault of one rank")
            yield batch

    trainer_of(network(), parallel=kind).fit(broken())
    return {}


def be_rank(rank: int, meeting: str, folder: str, names: list[str]) -> None:
    """Do some training runs as one of two ranks, in a process of its own, and leave a report."""
    warnings.simplefilter("error")
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    reports = {name: globals()[name.split()[0]](Path(folder), name.split()[1]) for name in names}
    (Path(folder) / f"report-{rank}.json").write_text(json.dumps(reports))
    dist.destroy_process_group()
    sys.stderr.flush()
    os._exit(0)  # in one of some twenty ends torch's process group aborts the interpreter as it takes itself apart
