"""A resumed run is the run that was begun: whatever its weights follow from is compared, and named where it differs."""

from __future__ import annotations

import enum
import functools
import json
import re
import shutil
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.harness import seal_manifest
from tests.train.training import PLAIN, network, pairs, trainer_of
from torch import nn

import stoker
from stoker.errors import CheckpointInvalidError, StokerError
from stoker.experiment.config import WarmInverse
from stoker.train import fingerprint, state_dict
from stoker.train import resume as contents
from stoker.train.schedule import StepDecay
from stoker.train.trainer import Trainer

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


def closing_over(weight: float) -> Callable[..., torch.Tensor]:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return weight * nn.functional.mse_loss(model(batch["x"]), batch["x_target"])

    return loss


def counting() -> Callable[..., torch.Tensor]:
    count = 0

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        return nn.functional.mse_loss(model(batch["x"]), batch["x_target"])

    return loss


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
        feed = stoker.Feed(store, self.view, batch_size=self.batch_size, order=self.order, **dict(self.feed))
        valid = stoker.Feed(store, self.valid_view, batch_size=16) if self.has_valid else None
        options: dict[str, Any] = {**PLAIN, "save_every": 3, **dict(self.trainer)}
        trainer = Trainer(model, self.loss, self.optimizer, folder=folder, **options)
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


def slower(step: int, total: int | None) -> float:
    return 1.0 / (step + 2)


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
    "another loss": (replace(BASE, loss=mae), "loss.function.name: 'mse' saved, 'mae' now"),
    "partial": (replace(BASE, loss=functools.partial(mse, weight=2.0)), "loss.function"),
    "criterion": (replace(BASE, loss=stoker.train.supervised(nn.L1Loss(), x="x", y="x_target")), "loss.function"),
    "dropout": (replace(BASE, model=lambda: Net(p=0.3)), "model.modules.layers.2.p: 0.1 saved, 0.3 now"),
    "norm eps": (replace(BASE, model=lambda: Net(eps=1e-3)), "model.modules.norm.eps: 1e-05 saved, 0.001 now"),
    "norm momentum": (replace(BASE, model=lambda: Net(momentum=0.5)), "model.modules.norm.momentum: 0.1 saved, 0.5 now"),
    "activation": (replace(BASE, model=lambda: Net(slope=0.2)), "model.modules.layers.1.negative_slope: 0.1 saved, 0.2 now"),
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


@pytest.mark.parametrize("name", ["config.max_grad_norm", "config.clip"])
def test_an_option_is_allowed_by_its_name_or_by_the_one_that_checkpoints_have(begun: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(begun, tmp_path / "run")
    CHANGES["clip"][0].fit(tmp_path / "run", resume=True, allow=[name])


def test_names_of_others_are_left_alone() -> None:
    facts = {"data": {"last": "mask", "last_batch": 3, "part": 1}, "valid": None, "setup": {"clip": 1}}
    expected = {"data": {"last": "mask", "last_batch": 3, "subset": 1}, "valid": None, "setup": {"clip": 1}}
    assert fingerprint.with_public_names(facts) == expected
    assert fingerprint.public_name("data.part.digest") == "data.subset.digest"
    assert [fingerprint.public_name(name) for name in ("data", "setup.clip")] == ["data", "setup.clip"]


def test_what_does_not_change_the_run_is_not_compared(begun: Path) -> None:
    for same in (
        BASE,
        replace(BASE, feed=(("threads", 2),)),
        replace(BASE, feed=(("residency", "host"),)),
        replace(BASE, trainer=(("log_every", 7),)),
        replace(BASE, trainer=(("keep_checkpoints", 3),)),
    ):
        same.fit(begun, resume=True, seed=7)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (closing_over(1.0), closing_over(2.0)),
        (Loss(1.0), Loss(2.0)),
        (functools.partial(mse, weight=1.0), functools.partial(mse, weight=2.0)),
        (mse, mae),
        (lambda model, batch: model(batch["x"]).mean(), lambda model, batch: model(batch["x"]).sum()),
        (lambda model, batch: (lambda x: x + 1)(model), lambda model, batch: (lambda x: x + 2)(model)),
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


def test_a_counter_of_the_function_itself_is_state_and_not_a_setting() -> None:
    loss = counting()
    before = fingerprint.describe(loss)
    for _ in range(300):  # the interpreter specialises code that runs often
        loss(nn.Linear(2, 2), {"x": torch.zeros(1, 2), "x_target": torch.zeros(1, 2)})
    assert fingerprint.describe(loss) == before


def test_a_global_that_a_loss_uses_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.describe(mse)
    monkeypatch.setitem(mse.__globals__, "DELTA", 2.0)
    assert fingerprint.describe(mse) != before


def test_a_helper_that_a_loss_calls_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.describe(mse)
    monkeypatch.setitem(mse.__globals__, "helper", other_helper)
    assert fingerprint.describe(mse) != before


def test_the_same_code_elsewhere_is_the_same() -> None:
    """Moved in its file, or run as a script: neither line numbers nor the name of the module count."""
    source = "def loss(model, batch):\n    return model(batch['x']).mean()\n"
    found = []
    for text, module in ((source, "__main__"), ("\n\n\n" + source, "train")):
        names: dict[str, Any] = {"__name__": module}
        exec(compile(text, f"/home/somebody/{module}.py", "exec"), names)
        found.append(fingerprint.describe(names["loss"]))
    assert found[0] == found[1]


def test_a_method_that_changes_is_seen() -> None:
    made = [type("Net", (nn.Module,), {"forward": types.FunctionType(one.__code__, {})}) for one in (helper, other_helper)]
    assert fingerprint.of_model(made[0]())["code"] != fingerprint.of_model(made[1]())["code"]


def test_a_schedule_that_inspects_the_end_makes_the_number_of_updates_part_of_the_run(tmp_path: Path) -> None:
    cosine = {"schedule": stoker.train.Cosine()}
    trainer_of(network(), folder=tmp_path / "run", **cosine).fit(pairs(), epochs=1)
    with pytest.raises(CheckpointInvalidError, match=r"schedule\.total_updates: 12 saved, 24 now"):
        trainer_of(network(), folder=tmp_path / "run", **cosine).fit(pairs(), epochs=2, resume=True)
    result = trainer_of(network(), folder=tmp_path / "run", **cosine).fit(pairs(), epochs=2, resume=True, allow=["schedule"])
    assert result.step == 24


def test_a_function_as_schedule_is_known_by_its_code(tmp_path: Path) -> None:
    trainer_of(network(), folder=tmp_path / "run", schedule=quicker).fit(pairs())
    trainer_of(network(), folder=tmp_path / "run", schedule=quicker).fit(pairs(), resume=True)
    with pytest.raises(CheckpointInvalidError, match=r"schedule\.function"):
        trainer_of(network(), folder=tmp_path / "run", schedule=slower).fit(pairs(), resume=True)


def test_a_list_of_batches_is_known_by_its_first_one(tmp_path: Path) -> None:
    trainer_of(network(), folder=tmp_path / "run").fit(pairs())
    with pytest.raises(CheckpointInvalidError, match=r"data\.first: "):
        trainer_of(network(), folder=tmp_path / "run").fit(pairs(seed=1), resume=True)


def test_a_loader_of_torch_is_known_by_its_settings(tmp_path: Path) -> None:
    def loader(batch_size: int) -> Any:
        x = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1]), batch_size=batch_size)

    trainer_of(network(), folder=tmp_path / "run").fit(loader(8))
    with pytest.raises(CheckpointInvalidError, match=r"data\.batch_size: 8 saved, 4 now"):
        trainer_of(network(), folder=tmp_path / "run").fit(loader(4), resume=True)


def change_facts(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    name = (folder / "checkpoints" / "LATEST").read_text().strip()
    path = folder / "checkpoints" / name / "checkpoint.json"
    tree = json.loads(path.read_bytes())
    change(tree["facts"])
    path.chmod(0o644)
    path.write_bytes(seal_manifest(tree))


def test_a_checkpoint_without_a_fingerprint_is_of_an_earlier_version_and_resumes(tmp_path: Path) -> None:
    BASE.fit(tmp_path / "run", resume=False)
    change_facts(tmp_path / "run", lambda told: [told.pop(name) for name in (*fingerprint.GROUPS, "python")] and None)
    BASE.fit(tmp_path / "run", resume=True)
    BASE.fit(tmp_path / "run", resume=True, allow=["data.batch_size"])


def test_code_of_another_python_is_not_compared(tmp_path: Path) -> None:
    def older(told: dict[str, Any]) -> None:
        told["python"] = "3.0"
        told["loss"]["function"]["code"] = told["loss"]["function"]["helper"]["code"] = "0" * 16
        told["model"]["code"] = {"Net": "0" * 16}

    BASE.fit(tmp_path / "run", resume=False)
    change_facts(tmp_path / "run", older)
    BASE.fit(tmp_path / "run", resume=True)
    with pytest.raises(CheckpointInvalidError, match=r"loss\.function\.name"):
        replace(BASE, loss=mae).fit(tmp_path / "run", resume=True)


def test_an_attribute_that_another_torch_has_is_not_compared(tmp_path: Path) -> None:
    BASE.fit(tmp_path / "run", resume=False)
    change_facts(tmp_path / "run", lambda told: told["model"]["modules"]["norm"].update(new=1))
    BASE.fit(tmp_path / "run", resume=True)


PROGRAM = """
import argparse, enum, types
from dataclasses import dataclass
import numpy as np
import torch
from torch import nn

QUANTILES = [0.1, 0.5]
WEIGHTS = torch.tensor([1.0, 2.0])
SHARES = np.array([1.0, 2.0])
CONFIG = {"k": 1.0}
NAMESPACE = argparse.Namespace(n=1.0)
SIMPLE = types.SimpleNamespace(m=1.0)
CLASSES = frozenset({1, 2})
HISTORY = []

class Mode(enum.Enum):
    ONE = 1
    TWO = 2

MODE = Mode.ONE

@dataclass(frozen=True)
class Options:
    alpha: float = 1.0

class Limits:
    least = 1.0

OPTIONS = Options(alpha=3.0)

def inner(x): return x * 1.5
def helper(x): return inner(x)

class Act(nn.Module):
    slope = 0.1
    def forward(self, x, power=1.0): return x * self.slope * power * self.offset
    @property
    def offset(self): return 2.0

class Net(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options, self.mode = options, MODE
        self.layer, self.act = nn.Linear(6, 1), Act()
    def forward(self, x): return helper(self.act(self.layer(x)))

def loss(model, batch):
    HISTORY.append(1)
    factors = [QUANTILES[0], WEIGHTS[0], SHARES[0], CONFIG["k"], NAMESPACE.n, SIMPLE.m]
    factors += [OPTIONS.alpha, Limits.least, len(CLASSES), MODE.value]
    return ((model(batch[0]) - batch[1]) ** 2).mean() * sum(map(float, factors))

def make(): return Net(OPTIONS), loss
"""
EDITS = {
    "a list": ("QUANTILES = [0.1", "QUANTILES = [0.2", "loss.function.uses.QUANTILES"),
    "a tensor": ("tensor([1.0", "tensor([3.0", "loss.function.uses.WEIGHTS"),
    "an array": ("np.array([1.0", "np.array([3.0", "loss.function.uses.SHARES"),
    "a dict": ('{"k": 1.0}', '{"k": 2.0}', "loss.function.uses.CONFIG.k"),
    "arguments": ("n=1.0", "n=2.0", "loss.function.uses.NAMESPACE.n"),
    "a namespace": ("m=1.0", "m=2.0", "loss.function.uses.SIMPLE.m"),
    "a set": ("{1, 2}", "{1, 3}", "loss.function.uses.CLASSES"),
    "a member of an enum": ("MODE = Mode.ONE", "MODE = Mode.TWO", "loss.function.uses.MODE.name"),
    "a dataclass": ("alpha=3.0", "alpha=4.0", "model.modules.(model).uses.options.alpha"),
    "an attribute of a class": ("least = 1.0", "least = 2.0", "loss.function.uses.Limits.uses.Limits.least"),
    "a helper of a helper of the model": ("x * 1.5", "x * 2.5", "model.uses.inner"),
    "an attribute of a class of the model": ("slope = 0.1", "slope = 0.2", "model.uses.Act.slope"),
    "a default of a method": ("power=1.0", "power=2.0", "model.uses.Act.forward.defaults"),
    "a property": ("return 2.0", "return 3.0", "model.uses.Act.offset.code"),
}


def run_program(folder: Path, text: str, *, epochs: int = 1, resume: bool = True) -> None:
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(text, str(folder.parent / "program.py"), "exec", dont_inherit=True), names)
    torch.manual_seed(0)
    model, loss = names["make"]()
    trainer_of(model, loss, folder=folder).fit(pairs(2), epochs=epochs, resume=resume)


@pytest.fixture(scope="module")
def program_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program") / "run"
    run_program(folder, PROGRAM, resume=False)
    return folder


def test_control_the_same_program_resumes(program_run: Path) -> None:
    run_program(program_run, PROGRAM)
    run_program(program_run, PROGRAM.replace("HISTORY = []", "HISTORY = [1, 2]"))  # which the loss fills: state, not a setting


@pytest.mark.parametrize("name", EDITS)
def test_what_the_code_of_a_user_uses_is_part_of_the_run(program_run: Path, name: str) -> None:
    before, after, field = EDITS[name]
    assert PROGRAM.count(before) == 1
    with pytest.raises(CheckpointInvalidError, match=rf"is of another run: (.*; )?{re.escape(field)}"):
        run_program(program_run, PROGRAM.replace(before, after))


@pytest.mark.parametrize("name", EDITS)
def test_negative_control_by_the_code_alone_they_are_not_seen(program_run: Path, name: str, tmp_path: Path) -> None:
    """As checkpoints of earlier versions have it, which are therefore still resumed."""
    shutil.copytree(program_run, tmp_path / "run")
    change_facts(tmp_path / "run", lambda told: told.pop("uses_version") and None)
    run_program(tmp_path / "run", PROGRAM.replace(*EDITS[name][:2]))


@pytest.mark.parametrize("name", ["betas", "another loss", "dropout", "values in memory", "batch size", "normalize", "precision"])
def test_negative_control_without_the_comparison_other_runs_are_resumed(
    begun: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(begun, tmp_path / "run")
    monkeypatch.setattr(contents, "compare", lambda *_, **__: None)
    CHANGES[name][0].fit(tmp_path / "run", resume=True)


def test_a_renamed_class_of_stoker_keeps_its_name_in_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed(nn.Linear):
        name_in_checkpoints = "stoker.somewhere.Earlier"

    class Inheriting(Renamed):
        pass

    monkeypatch.setattr(fingerprint, "_is_library", lambda kind: True)
    assert fingerprint.of_model(Renamed(1, 1))["modules"]["(model)"]["type"] == "stoker.somewhere.Earlier"
    assert fingerprint.of_model(Inheriting(1, 1))["modules"]["(model)"]["type"].endswith("Inheriting")


@pytest.mark.parametrize(("schedule", "written"), [(StepDecay(every=5), "Steps(every=5"), (WarmInverse(), "Inverse(warmup=4000")])
def test_renamed_schedules_are_compared_by_their_first_name(schedule: Any, written: str) -> None:
    trainer = trainer_of(network(), schedule=schedule)
    assert contents.comparable(trainer._parts)["config"]["schedule"].startswith(written)
