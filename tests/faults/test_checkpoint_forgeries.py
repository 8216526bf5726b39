"""Forged checkpoints whose hashes fit: each ends in one line of ours, or in a run that is as good as a true one.

A forgery is a true checkpoint of a small run with some of its content replaced, written by the writer itself, so that sizes,
hashes and digests are right. What follows from it is then tried: `Trainer.fit(resume=True)` and `load_trained`.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.runs import Crash, Net, make_store, train
from torch import nn

import stoker
from stoker.errors import CheckpointInvalidError, StokerError
from stoker.train import checkpoint, load_trained, state_dict
from stoker.train import resume as contents
from stoker.train.checkpoint import CheckpointFolder

Change = Callable[[dict[str, Any], dict[str, Any]], object]


def at(path: str, value: Any) -> Change:
    """Put a value, or what a function makes of the one that is there, at a place of the parts or facts."""

    def change(parts: dict[str, Any], facts: dict[str, Any]) -> None:
        node: Any = {**parts, "facts": facts}
        *way, last = [int(key) if key.lstrip("-").isdigit() else key for key in path.split("/")]
        if not way:
            parts[str(last)] = value(parts.get(str(last))) if callable(value) else value
            return
        for key in way:
            node = node[key]
        node[last] = value(node[last]) if callable(value) else value

    return change


def gone(path: str) -> Change:
    def change(parts: dict[str, Any], facts: dict[str, Any]) -> None:
        node: Any = {**parts, "facts": facts}
        *way, last = [int(key) if key.isdigit() else key for key in path.split("/")]
        for key in way:
            node = node[key]
        del (parts if not way else node)[last]

    return change


def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: torch.full_like(tensor, value)


def typed(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(dtype)


def longer(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor])


WEIGHT, MOMENTS, STEP = "model/layers.0.weight", "optimizer/0/exp_avg", "optimizer/0/step"
PROGRESS, RANDOM, STREAM, READOUT = "fit/progress", "fit/random", "fit/stream", "fit/readout"
HUGE = 2**62

REFUSED: dict[str, Change] = {
    # how steps are done
    "precision evil": at("facts/setup/precision", "evil"),
    "precision of a GPU": at("facts/setup/precision", "fp16"),
    "fused text": at("facts/setup/fused", "yes"),
    "setup unknown": at("facts/setup/nice", True),
    "setup gone": gone("facts/setup"),
    "config gone": gone("facts/config"),
    "config ema": at("facts/config/ema", 7.0),
    "config accumulate": at("facts/config/accumulate", "2"),
    "facts epoch": at("facts/epoch", -1),
    "fingerprint of another loss": at("facts/loss", {"function": "evil"}),
    "fingerprint that is no record": at("facts/model", 5),
    # the average
    "ema decay 7": at("ema/decay", 7.0),
    "ema decay of another": at("ema/decay", 0.5),
    "ema shape": at("ema/average/layers.0.weight", longer),
    "ema type": at("ema/average/layers.0.weight", typed(torch.int32)),
    "ema nan": at("ema/average/layers.0.weight", filled(math.nan)),
    "ema gone": gone("ema"),
    "ema name": at("ema/average", lambda average: {f"{name}x": tensor for name, tensor in average.items()}),
    # the model
    "weight more": at("model/evil", torch.zeros(3)),
    "weight shape": at(WEIGHT, lambda tensor: tensor.T.contiguous()),
    "weight type": at(WEIGHT, typed(torch.float64)),
    "weight text": at(WEIGHT, "evil"),
    "weight nan": at(WEIGHT, filled(math.nan)),
    "statistic type": at("model/layers.1.num_batches_tracked", typed(torch.float32)),
    "statistic inf": at("model/layers.1.running_var", filled(math.inf)),
    "model list": at("model", [1, 2]),
    "model gone": gone("model"),
    # the optimizer
    "moments shape": at(MOMENTS, longer),
    "moments type": at(MOMENTS, typed(torch.float64)),
    "moments text": at(MOMENTS, "evil"),
    "moments nan": at(MOMENTS, filled(math.nan)),
    "moments gone": gone(MOMENTS),
    "moments more": at("optimizer/0/evil", torch.zeros(3)),
    "steps shape": at(STEP, torch.zeros(3)),
    "optimizer number": at("optimizer", lambda states: {**states, 99: states[0]}),
    "optimizer text": at("optimizer", lambda states: {str(name): state for name, state in states.items()}),
    "optimizer gone": gone("optimizer"),
    # how far it is
    "step below zero": at(f"{PROGRESS}/step", -3),
    "step of another": at(f"{PROGRESS}/step", 4),
    "epoch huge": at(f"{PROGRESS}/epoch", HUGE),
    "batches more than 64 bits": at(f"{PROGRESS}/batches", 2**90),
    "seconds nan": at(f"{PROGRESS}/seconds", math.nan),
    "best text": at(f"{PROGRESS}/best", "good"),
    "progress unknown": at(f"{PROGRESS}/evil", 1),
    "overflows text": at("fit/overflows", "many"),
    "taken of nothing": at("fit/taken", [{}]),
    "fit unknown": at("fit/evil", 1),
    "fit gone": gone("fit"),
    # numbers that are not read yet
    "readout names": at(f"{READOUT}/names", ["evil"]),
    "readout rows": at(f"{READOUT}/rows", torch.zeros(2, 7)),
    "readout rows more": at(f"{READOUT}/rows", torch.zeros(5, 3)),
    "readout first": at(f"{READOUT}/first", HUGE),
    "readout under way": at(f"{READOUT}/under_way", [{"first": 0, "rows": "evil"}]),
    # random numbers
    "random torch short": at(f"{RANDOM}/torch", b"\0" * 17),
    "random python short": at(f"{RANDOM}/python/numbers", b"\0" * 8),
    "random python index": at(f"{RANDOM}/python/numbers", lambda data: data[:-4] + b"\xff\xff\xff\x7f"),
    "random python gauss": at(f"{RANDOM}/python/gauss", "evil"),
    "random numpy index": at(f"{RANDOM}/numpy/state/pos", 10**6),
    "random numpy key": at(f"{RANDOM}/numpy/state/key", ("<u4", b"\0" * 16)),
    "random numpy key type": at(f"{RANDOM}/numpy/state/key", ("|O", b"\0" * 2496)),
    "random numpy kind": at(f"{RANDOM}/numpy/bit_generator", "PCG64"),
    "random cuda": at(f"{RANDOM}/cuda", ["evil"]),
    "random gone": gone(RANDOM),
    "others": at("fit/others", [{"random": 1}]),
    # where the feed is
    "stream position huge": at(f"{STREAM}/position", HUGE),
    "stream epoch more than 63 bits": at(f"{STREAM}/epoch", 2**70),
    "stream samples": at(f"{STREAM}/samples", 3),
    "stream of another feed": at(f"{STREAM}/feed", "00000000"),
    "stream nothing": at(STREAM, {}),
    # early stopping
    "stopping metric": at("stopping/metric", "val_evil"),
    "stopping best": at("stopping/best", "good"),
    "stopping waited": at("stopping/waited", -1),
    # parts
    "part unknown": at("evil", {"a": 1}),
    "scale type": at("scale", {"value": torch.tensor(1), "growth": torch.tensor(0)}),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that crashed in its second epoch, so that all of its checkpoint is in use."""
    folder = tmp_path_factory.mktemp("forged") / "run"
    with pytest.raises(Crash):
        train(folder, crash_at=17)
    return folder


def forge(begun: Path, folder: Path, change: Change) -> Path:
    """A copy of the run whose only checkpoint is changed, and has hashes that fit."""
    shutil.copytree(begun, folder)
    with CheckpointFolder(folder / "checkpoints") as checkpoints:
        found = checkpoints.latest()
    change(found.parts, found.facts)
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").mkdir()
    checkpoint.write(found.path, found.parts, found.facts)
    (folder / "checkpoints" / "LATEST").write_text(f"{found.path.name}\n")
    return folder


def outcome(folder: Path) -> str:
    """The line in which a resume ends, or nothing where it goes to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            train(folder, resume=True)
        except StokerError as error:
            return str(error)
    return ""


@pytest.mark.promise("P13")
@pytest.mark.parametrize("name", REFUSED)
def test_a_forged_checkpoint_is_refused_in_one_line(begun: Path, tmp_path: Path, name: str) -> None:
    line = outcome(forge(begun, tmp_path / "run", REFUSED[name]))
    assert line
    assert "\n" not in line
    assert len(line) < 1200


VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**40,
    2**80,
    0.5,
    math.nan,
    math.inf,
    "",
    "evil",
    b"",
    b"\xff" * 9,
    [],
    [[]],
    (),
    {},
    {"a": 1},
]


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(tree, dict):
        return [path, *(one for key, part in tree.items() for one in places(part, (*path, key)))]
    return [path]


@pytest.mark.promise("P13")
@pytest.mark.parametrize("part", range(6))
def test_any_value_at_any_place_ends_in_a_line_or_in_a_run(
    begun: Path, tmp_path: Path, rng: np.random.Generator, part: int
) -> None:
    """Every place of a checkpoint in turn, each with a value of another kind; weights never become NaN."""

    def put(parts: dict[str, Any], facts: dict[str, Any]) -> None:
        tree: Any = {**parts, "facts": facts}
        del tree["facts"]["model"], tree["facts"]["data"], tree["facts"]["valid"], tree["facts"]["loss"]  # refused if they differ
        found = [one for one in places(tree) if len(one) > 1][part::6]
        *way, last = found[int(rng.integers(len(found)))]
        for key in way:
            tree = tree[key]
        value = VALUES[int(rng.integers(len(VALUES)))]
        tree[last] = torch.from_numpy(rng.standard_normal(3)) if rng.random() < 0.2 and way[0] != "facts" else value

    for number in range(12):
        folder = forge(begun, tmp_path / str(number), put)
        assert "\n" not in outcome(folder)


@pytest.mark.promise("P13", control=True)
def test_negative_control_without_the_check_forgeries_are_accepted_or_crash(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "check", lambda *_: None)
    accepted, crashed = [], []
    for name in ("ema decay 7", "moments more", "moments type", "moments shape", "taken of nothing"):
        try:
            if not outcome(forge(begun, tmp_path / name, REFUSED[name])):
                accepted.append(name)
        except Exception:
            crashed.append(name)
    assert "ema decay 7" in accepted
    assert crashed


def test_negative_control_without_the_check_of_its_form_numpy_takes_an_index_that_is_none() -> None:
    state = state_dict.capture()
    state["numpy"]["state"]["pos"] = 10**6
    before = np.random.get_state()
    with pytest.raises(CheckpointInvalidError, match=r"random\.numpy\.state\.pos is 1000000"):
        state_dict.check(state)
    state_dict.restore(state)  # taken as it is: the next number would be read from outside of the state
    np.random.set_state(before)


OPTIONS: dict[str, Any] = {
    "Adam": {"amsgrad": True},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Adagrad": {},
    "Adafactor": {},
}


@pytest.mark.parametrize("name", [*OPTIONS, "SGD", *"Adadelta NAdam RAdam Adamax ASGD Rprop".split()])
def test_states_of_every_optimizer_pass(tmp_path: Path, name: str) -> None:
    """The check learns from the optimizer itself what a state is."""

    def fit(*, resume: bool) -> stoker.train.Result:
        torch.manual_seed(0)
        model = nn.Linear(8, 1)
        feed = stoker.Feed(make_store(), stoker.Windows(8, horizon=1), batch_size=32)
        given = {"precision": "fp32", "progress": False, "folder": tmp_path / "run"}
        loss = stoker.train.supervised(nn.MSELoss(), x="x", y="x_target")
        trainer = stoker.Trainer(
            model, loss, getattr(torch.optim, name)(model.parameters(), lr=1e-3, **OPTIONS.get(name, {})), **given
        )
        return trainer.fit(feed, epochs=2 if resume else 1, resume=resume)

    fit(resume=False)
    assert fit(resume=True).epoch == 2


@pytest.mark.parametrize("name", [name for name in REFUSED if name.split()[0] in ("weight", "model", "ema", "statistic")])
def test_a_forged_checkpoint_gives_no_weights_to_an_export(begun: Path, tmp_path: Path, name: str) -> None:
    folder = forge(begun, tmp_path / "run", REFUSED[name])
    model = Net()
    before = [weight.clone() for weight in model.parameters()]
    try:
        load_trained(model, folder, latest=True)
    except StokerError as error:
        line = str(error)
    else:
        line = ""
        assert name.startswith("ema"), "the average is not needed"
        assert all(bool(weight.isfinite().all()) for weight in model.parameters())
    assert "\n" not in line
    assert not line or all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
