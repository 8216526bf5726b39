"""A resumed run is the run that was begun: whatever its weights follow from is compared, and named where it differs."""

from __future__ import annotations

import enum
import functools
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.harness.flat_feed import flat_feed
from tests.train.training import PLAIN, grouped, network, pairs, trainer_of
from torch import nn

import stoker
from stoker import Trainer
from stoker.errors import CheckpointInvalidError, StokerError
from stoker.train import fingerprint, state_dict
from stoker.train import resume as contents

DELTA = 1.0


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(str):
    pass


def helper(errors: torch.Tensor) -> torch.Tensor:
    return (errors**2).mean()


def other_helper(errors: torch.Tensor) -> torch.Tensor:
    return errors.abs().mean()


def mse(model: nn.Module, batch: Any, *, weight: float = 1.0) -> torch.Tensor:
    return DELTA * weight * helper(model(batch["x"]) - batch["x_target"])


def mae(model: nn.Module, batch: Any, *, weight: float = 1.0) -> torch.Tensor:
    return DELTA * weight * other_helper(model(batch["x"]) - batch["x_target"])


class Loss:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return self.weight * nn.functional.mse_loss(model(batch["x"]), batch["x_target"])


class Net(nn.Module):
    def __init__(self, *, p: float = 0.1, eps: float = 1e-5, momentum: float = 0.1, slope: float = 0.1, power: int = 1) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, eps=eps, momentum=momentum)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(slope), nn.Dropout(p), nn.Linear(8, 1))
        self.power = power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(self.norm(x) ** self.power)
        return out


class Twisted(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1.0 * super().forward(x)


def halved(arrays: Any) -> Any:
    return {**arrays, "x": arrays["x"] / 2}


def scaled(arrays: Any, *, by: float) -> Any:
    return {**arrays, "x": arrays["x"] * by}


def data(*, seed: int = 0, change: float = 0.0) -> stoker.Store:
    rng = np.random.default_rng(seed)
    series = [np.cumsum(rng.standard_normal(30)).astype(np.float32) for _ in range(4)]
    series[2][7] += change
    return stoker.Store.from_arrays(x=series)


@dataclass(frozen=True, kw_only=True)
class Case:
    """All of a small run, each part of which a test changes."""

    model: Callable[[], nn.Module] = Net
    loss: Any = mse
    optimizer: Any
    store: Callable[[], stoker.Store] = data
    view: Any
    order: Any
    batch_size: int = 16
    epochs: int = 2
    has_valid: bool = True
    valid_view: Any
    feed: Any = ()
    trainer: Any = ()

    def fit(self, folder: Path, *, resume: bool, allow: Sequence[str] = (), seed: int = 0) -> Trainer:
        torch.manual_seed(seed)
        model, store = self.model(), self.store()
        feed = flat_feed(store, self.view, batch_size=self.batch_size, order=self.order, **dict(self.feed))
        valid = stoker.Feed(store, self.valid_view, batch_size=16) if self.has_valid else None
        options: dict[str, Any] = {**PLAIN, "save_every": 3, **dict(self.trainer)}
        trainer = Trainer(model, self.loss, self.optimizer, folder=folder, **grouped(options))
        trainer.fit(feed, valid=valid, epochs=self.epochs, resume=resume, allow=allow)
        return trainer


BASE = Case(
    optimizer=functools.partial(torch.optim.AdamW, lr=1e-2),
    view=stoker.Windows(8, horizon=1),
    order=stoker.Shuffle(3),
    valid_view=stoker.Windows(8, stride=4, horizon=1),
)
REFUSED = ("amsgrad", "kind of order", "order of weights", "stride")
"""Changes that allowing them does not make possible: moments of other weights, positions in other samples."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "run"
    BASE.fit(folder, resume=False)
    return folder


def adamw(**options: Any) -> Any:
    return functools.partial(torch.optim.AdamW, **{"lr": 1e-2, **options})


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    first, *rest = parameters
    return torch.optim.AdamW([{"params": [first], "betas": (0.5, 0.9)}, {"params": rest}], lr=1e-2)


def in_reverse(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(list(parameters)[::-1], lr=1e-2)


def quicker(step: int, total: int | None) -> float:
    return 1.0 / (step + 1)


CHANGES: dict[str, tuple[Case, str]] = {
    "lr": (replace(BASE, optimizer=adamw(lr=2e-2)), "config.lr: [0.01] saved, [0.02] now"),
    "weight decay": (replace(BASE, optimizer=adamw(weight_decay=0.5)), "config.weight_decay: [0.01] saved, [0.5] now"),
    "betas": (replace(BASE, optimizer=adamw(betas=(0.8, 0.999))), "optimizer.betas: [0.9, 0.999] saved, [0.8, 0.999] now"),
    "eps": (replace(BASE, optimizer=adamw(eps=1e-4)), "optimizer.eps: 1e-08 saved, 0.0001 now"),
    "amsgrad": (replace(BASE, optimizer=adamw(amsgrad=True)), "optimizer.amsgrad: False saved, True now"),
    "maximize": (replace(BASE, optimizer=adamw(maximize=True)), "optimizer.maximize: False saved, True now"),
    "groups": (replace(BASE, optimizer=two_groups), "optimizer.groups: 1 saved, 2 now"),
    "order of weights": (replace(BASE, optimizer=in_reverse), "optimizer.weights: "),
    "another optimizer": (replace(BASE, optimizer=functools.partial(torch.optim.Adam, lr=1e-2)), "config.optimizer: 'AdamW' saved"),
    "another loss": (replace(BASE, loss=mae), "loss.function: 'mse' saved, 'mae' now"),
    "partial": (replace(BASE, loss=functools.partial(mse, weight=2.0)), "loss.function"),
    "criterion": (replace(BASE, loss=stoker.train.supervised(nn.L1Loss(), x="x", y="x_target")), "loss.function"),
    "dropout": (
        replace(BASE, model=lambda: Net(p=0.3)),
        "model.modules.layers.2.p: 0.1 saved, 0.3 now",
    ),
    "norm eps": (replace(BASE, model=lambda: Net(eps=1e-3)), "model.modules.norm.eps: 1e-05 saved, 0.001 now"),
    "norm momentum": (
        replace(BASE, model=lambda: Net(momentum=0.5)),
        "model.modules.norm.momentum: 0.1 saved, 0.5 now",
    ),
    "activation": (
        replace(BASE, model=lambda: Net(slope=0.2)),
        "model.modules.layers.1.negative_slope: 0.1 saved, 0.2 now",
    ),
    "own attribute": (replace(BASE, model=lambda: Net(power=2)), "model.modules.(model).power: 1 saved, 2 now"),
    "own forward": (replace(BASE, model=Twisted), "model.modules.(model).type: 'Net' saved, 'Twisted' now"),
    "values in memory": (replace(BASE, store=lambda: data(change=1e-6)), "data.store: "),
    "another seed of the data": (replace(BASE, store=lambda: data(seed=1)), "data.store: "),
    "batch size": (replace(BASE, batch_size=8), "data.batch_size: 16 saved, 8 now"),
    "seed of the order": (replace(BASE, order=stoker.Shuffle(4)), "data.order.seed: 3 saved, 4 now"),
    "kind of order": (replace(BASE, order=None), "data.order"),
    "stride": (replace(BASE, view=stoker.Windows(8, stride=2, horizon=1)), "data.view.stride: 1 saved, 2 now"),
    "last": (replace(BASE, feed=(("last_batch", "drop"),)), "data.last_batch: 'pad' saved, 'drop' now"),
    "normalize": (replace(BASE, feed=(("normalize", "zero"),)), "data.normalize: None saved, 'zero' now"),
    "dtype": (replace(BASE, feed=(("dtype", "float64"),)), "data.columns.x: 'float32' saved, 'float64' now"),
    "encode": (replace(BASE, feed=(("transform", halved),)), "data.transform"),
    "valid gone": (replace(BASE, has_valid=False), "valid: "),
    "valid view": (replace(BASE, valid_view=stoker.Windows(8, stride=5, horizon=1)), "valid.view.stride: 4 saved, 5 now"),
    "accumulate": (replace(BASE, trainer=(("grad_accum_steps", 2),)), "config.grad_accum_steps: 1 saved, 2 now"),
    "clip": (replace(BASE, trainer=(("max_grad_norm", 1.0),)), "config.max_grad_norm: None saved, 1.0 now"),
    "ema": (replace(BASE, trainer=(("ema", 0.9),)), "config.ema: None saved, 0.9 now"),
    "guard": (replace(BASE, trainer=(("guard", "skip"),)), "config.guard: 'stop' saved, 'skip' now"),
    "schedule": (replace(BASE, trainer=(("schedule", quicker),)), "config.schedule: None saved, 'a function' now"),
    "seed": (replace(BASE, trainer=(("seed", 5),)), "run.seed: None saved, 5 now"),
    "precision": (replace(BASE, trainer=(("precision", "bf16"),)), "setup.precision: 'fp32' saved, 'bf16' now"),
    "compile": (replace(BASE, trainer=(("compile", True),)), "setup.compile: False saved, True now"),
    "fused": (replace(BASE, optimizer=adamw(fused=True)), "setup.fused: False saved, True now"),
    "early stopping": (
        replace(BASE, trainer=(("early_stopping", stoker.EarlyStopping("val_loss", patience=3)),)),
        "run.early_stopping.patience: 2147483648 saved, 3 now",
    ),
}


@pytest.mark.promise("P13")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_changes_the_run_is_refused_by_name(begun: Path, name: str) -> None:
    changed, line = CHANGES[name]
    with pytest.raises(CheckpointInvalidError, match="is of another run") as caught:
        changed.fit(begun, resume=True)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_allowed_by_name_resumes_or_says_why_not(begun: Path, tmp_path: Path, name: str) -> None:
    """An optimizer of another kind cannot take over moments, and a position means other samples in other data: one line each."""
    if name == "compile":
        pytest.skip("compiling takes minutes; it is refused unless it is allowed, as the test above shows")
    shutil.copytree(begun, tmp_path / "run")
    groups = [*fingerprint.GROUPS, "config", "setup"]
    if name in REFUSED:
        with pytest.raises(StokerError, match=r"^[^\n]+$"):
            CHANGES[name][0].fit(tmp_path / "run", resume=True, allow=groups)
        return
    trainer = CHANGES[name][0].fit(tmp_path / "run", resume=True, allow=groups)
    assert name != "precision" or trainer.setup.precision == "bf16", "what is asked for and allowed is done"


def test_what_does_not_change_the_run_is_not_compared(begun: Path) -> None:
    for same in (
        BASE,
        replace(BASE, feed=(("threads", 2),)),
        replace(BASE, feed=(("residency", "host"),)),
        replace(BASE, trainer=(("log_every", 7),)),
        replace(BASE, trainer=(("keep", 3),)),
    ):
        same.fit(begun, resume=True, seed=7)


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Loss(1.0), Loss(2.0)),
        (functools.partial(mse, weight=1.0), functools.partial(mse, weight=2.0)),
        (mse, mae),
        (nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(label_smoothing=0.2)),
        (nn.CrossEntropyLoss(torch.tensor([1.0, 2.0])), nn.CrossEntropyLoss(torch.tensor([1.0, 3.0]))),
        (nn.functional.mse_loss, nn.functional.l1_loss),
        (functools.partial(scaled, by=1.0), functools.partial(scaled, by=2.0)),
        (stoker.Shuffle(1), stoker.Shuffle(2)),
        (np.arange(3), np.arange(1, 4)),
        ({"a": [1, {2}]}, {"a": [1, {3}]}),
        (Level.LOW, Level.HIGH),  # an int and a text that JSON and checkpoints would not take
        (Word("a"), Word("b")),
        (Loss, Net),
    ],
)
def test_descriptions_distinguish_settings(before: Any, after: Any) -> None:
    one, other = fingerprint.describe(before), fingerprint.describe(after)
    assert one != other
    assert json.loads(json.dumps(one)) == one, "it goes through a checkpoint"
    assert state_dict.flatten({"facts": one})
    assert fingerprint.describe(before) == one


def test_a_schedule_that_inspects_the_end_makes_the_number_of_updates_part_of_the_run(tmp_path: Path) -> None:
    cosine = {"schedule": stoker.train.Cosine()}
    trainer_of(network(), folder=tmp_path / "run", **cosine).fit(pairs(), epochs=1)
    with pytest.raises(CheckpointInvalidError, match=r"schedule\.total_updates: 12 saved, 24 now"):
        trainer_of(network(), folder=tmp_path / "run", **cosine).fit(pairs(), epochs=2, resume=True)
    result = trainer_of(network(), folder=tmp_path / "run", **cosine).fit(pairs(), epochs=2, resume=True, allow=["schedule"])
    assert result.step == 24


def test_a_loader_of_torch_is_known_by_its_settings(tmp_path: Path) -> None:
    def loader(batch_size: int) -> Any:
        x = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1]), batch_size=batch_size)

    trainer_of(network(), folder=tmp_path / "run").fit(loader(8))
    with pytest.raises(CheckpointInvalidError, match=r"data\.batch_size: 8 saved, 4 now"):
        trainer_of(network(), folder=tmp_path / "run").fit(loader(4), resume=True)


MODULE = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 1)

    def forward(self, x):
        return {factor} * self.inner(x)
"""


def net_of(path: Path) -> nn.Module:
    """The model that a file of the user defines."""
    spec = importlib.util.spec_from_file_location("users_model", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    made: nn.Module = module.Net()
    return made


@pytest.mark.promise("P13")
def test_a_changed_source_file_is_warned_of_and_refused_with_strict(tmp_path: Path) -> None:
    path = tmp_path / "users_model.py"
    path.write_text(MODULE.format(factor="1.0"))
    trainer_of(net_of(path), folder=tmp_path / "run").fit(pairs())
    trainer_of(net_of(path), folder=tmp_path / "run").fit(pairs(), resume=True, strict=True)
    path.write_text(MODULE.format(factor="2.00"))
    with pytest.raises(CheckpointInvalidError, match=r"^users_model\.py changed since .* was saved\. Restore the source"):
        trainer_of(net_of(path), folder=tmp_path / "run").fit(pairs(), resume=True, strict=True)
    with pytest.warns(UserWarning, match=r"users_model\.py changed since"):
        trainer_of(net_of(path), folder=tmp_path / "run").fit(pairs(), resume=True)


def test_source_files_are_those_of_the_user() -> None:
    here = fingerprint.source_files(Net(), functools.partial(mse, weight=2.0))
    assert list(here) == [Path(__file__).name]
    assert fingerprint.source_files(nn.Linear(2, 2), nn.functional.mse_loss) == {}
    notebook = type("Net", (nn.Module,), {"__module__": "no_such_module"})
    assert fingerprint.source_files(notebook(), nn.functional.mse_loss) == {}


@pytest.mark.promise("P13")
def test_another_number_of_threads_is_warned_of(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    with pytest.warns(UserWarning, match=r"saved with \d+ threads .* has 77 threads \(OMP_NUM_THREADS=.*differ in their last bits"):
        BASE.fit(begun, resume=True)


@pytest.mark.promise("P13", control=True)
@pytest.mark.parametrize("name", ["betas", "another loss", "dropout", "values in memory", "batch size", "normalize", "precision"])
def test_negative_control_without_the_comparison_other_runs_are_resumed(
    begun: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(begun, tmp_path / "run")
    monkeypatch.setattr(contents, "compare", lambda *_, **__: None)
    CHANGES[name][0].fit(tmp_path / "run", resume=True)
