"""The observer: what it records of loops of all kinds, in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.compare.observed import Observed
from stoker.compare.sides import Version, prepared

MODEL = "import torch\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(4, 1)\nx = torch.randn(8, 4)\n"
LOOPS = {
    "optimizer": (
        "opt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(30):\n    opt.zero_grad(); model(x).square().mean().backward(); opt.step()\n"
    ),
    "by hand": (
        "for _ in range(30):\n    model.zero_grad(); model(x).square().mean().backward()\n"
        "    with torch.no_grad():\n        [w.sub_(0.1 * w.grad) for w in model.parameters()]\n"
    ),
    "closure": (
        "opt = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=1)\n"
        "def closure():\n    opt.zero_grad(); loss = model(x).square().mean(); loss.backward(); return loss\n"
        "for _ in range(30):\n    opt.step(closure)\n"
    ),
    "in the backward pass": (
        "opts = {w: torch.optim.SGD([w], 0.1) for w in model.parameters()}\n"
        "for w in opts:\n    w.register_post_accumulate_grad_hook(lambda w: (opts[w].step(), opts[w].zero_grad(), None)[2])\n"
        "for _ in range(30):\n    model(x).square().mean().backward()\n"
    ),
}


def run(folder: Path, text: str, **options: object) -> Observed:
    path = folder / "train.py"
    path.write_text(text)
    with prepared(Version(program=str(path), environment={"OMP_NUM_THREADS": "1"})) as side:
        return side.run([], time_limit=100, **options)


@pytest.mark.parametrize("name", LOOPS)
def test_steps_and_losses_of_every_kind_of_loop_are_seen(tmp_path: Path, name: str) -> None:
    seen = run(tmp_path, MODEL + LOOPS[name] + "print('end')\n", whole=True, observe=True)
    steps = 30 if name != "by hand" else 11  # until it is known that there is no optimizer
    assert len(seen.ends) == len(seen.losses) == steps
    if name in ("optimizer", "in the backward pass"):
        assert seen.losses[0] > seen.losses[-1]
        assert seen.training.per_step[:2] == [8, 16]
    assert (seen.finished, seen.output) == (True, "end\n")


def test_a_run_ends_after_its_steps(tmp_path: Path) -> None:
    seen = run(tmp_path, MODEL + LOOPS["optimizer"] + "print('end')\n", steps=10)
    assert (len(seen.ends), seen.finished, seen.output) == (10, False, "")
    assert seen.ends[4] <= seen.middle <= seen.end
    assert not seen.training.exact, "a run that is timed records no fingerprints"


def test_a_run_ends_after_its_time(tmp_path: Path) -> None:
    text = MODEL + LOOPS["optimizer"].replace("range(30)", "range(10**9)")
    seen = run(tmp_path, text, until=0.5, observe=True)
    assert 0.5 <= seen.ends[-1] - seen.ends[0] < 50
    assert len(seen.ends) != 200, "not the usual number of steps"


def test_a_perturbed_run_differs_by_rounding(tmp_path: Path) -> None:
    losses = [run(tmp_path, MODEL + LOOPS["optimizer"], steps=10, perturb=perturb).losses for perturb in (False, False, True)]
    assert losses[0] == losses[1]
    assert losses[0][0] == losses[2][0]
    assert losses[0][1:] != losses[2][1:]
    assert losses[0] == pytest.approx(losses[2], rel=1e-5)


def test_what_is_observed_does_not_change_the_program(tmp_path: Path) -> None:
    text = MODEL + "drop = torch.nn.Dropout()\n" + LOOPS["optimizer"].replace("model(x)", "drop(model(x))")
    assert run(tmp_path, text, steps=20).losses == run(tmp_path, text, steps=20, observe=True).losses


def test_the_precision_is_the_lowest_that_was_seen(tmp_path: Path) -> None:
    autocast = LOOPS["optimizer"].replace("for _", "torch.set_autocast_enabled('cpu', True)\nfor _")
    assert run(tmp_path, MODEL + autocast, steps=10, observe=True).epsilon == 2.0**-7
    assert run(tmp_path, MODEL + LOOPS["optimizer"], steps=10, observe=True).epsilon == 2.0**-23


def test_a_repeat_has_other_seeds(tmp_path: Path) -> None:
    text = MODEL + LOOPS["optimizer"]
    runs = [run(tmp_path, text, steps=5, seed=seed).losses for seed in (0, 1, 1, 2)]
    assert runs[1] == runs[2]
    assert len({tuple(losses) for losses in runs}) == 3
