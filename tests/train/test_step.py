"""The step: equal to the plain loop bit for bit, weighted by samples, and never updated by what is not finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.train.training import Kept, network, pairs, plain_loop, same_weights, trainer_of
from torch import nn

from stoker.train.step import Readout


@pytest.mark.promise("P15")
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize(
    "make",
    [
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True),
        lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=False),
        lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3),
    ],
    ids=["fused", "foreach", "sgd", "rmsprop"],
)
def test_a_step_equals_the_plain_loop_bit_for_bit(make: Any, clip: float | None) -> None:
    ours, plain = network(norm=True, dropout=0.2), network(norm=True, dropout=0.2)
    plain_loop(plain, make(plain), pairs(), epochs=3, clip=clip)
    torch.manual_seed(0)
    ours = network(norm=True, dropout=0.2)
    trainer_of(ours, optimizer=make(ours), max_grad_norm=clip).fit(pairs(), epochs=3)
    assert same_weights(ours, plain)


@pytest.mark.promise("P15")
def test_unequal_micro_batches_make_the_update_of_all_their_samples() -> None:
    """3 micro-batches of 16, 16 and 4 samples are one batch of 36; the last update has what is left of the epoch."""
    parts = [*pairs(2), *pairs(1, rows=4, seed=1), *pairs(1, rows=16, seed=2)]
    whole = [(torch.cat([x for x, _ in parts[:3]]), torch.cat([y for _, y in parts[:3]])), parts[3]]
    ours, plain = network(), network()
    plain_loop(plain, torch.optim.SGD(plain.parameters(), lr=0.1), whole, epochs=3)
    trainer_of(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1, fused=False), grad_accum_steps=3).fit(parts, epochs=3)
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.promise("P15")
def test_a_left_over_micro_batch_never_leaks_into_the_next_epoch() -> None:
    """5 micro-batches, 2 an update: the twin updates after 2, 4 and 5, with fresh gradients each time."""
    batches, ours, twin = pairs(5), network(), network()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(2):
        for group in (batches[:2], batches[2:4], batches[4:]):
            optimizer.zero_grad()
            for x, y in group:
                (nn.functional.mse_loss(twin(x), y) / len(group)).backward()
            optimizer.step()
    result = trainer_of(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1, fused=False), grad_accum_steps=2).fit(
        batches, epochs=2
    )
    assert result.step == 6
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_rows_that_are_not_samples_do_not_count() -> None:
    x, y = pairs(1)[0]
    batch = {"x": x, "y": y.clone(), "valid": torch.arange(16) < 5}
    batch["y"][5:] = 1e6
    ours, plain = network(), network()
    plain_loop(plain, torch.optim.SGD(plain.parameters(), lr=0.1), [(x[:5], y[:5])], epochs=1)
    trainer_of(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1, fused=False)).fit([batch])
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_further_scalars_of_the_loss_are_logged() -> None:
    def loss(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        prediction = model(batch[0])
        return {"loss": nn.functional.mse_loss(prediction, batch[1]), "mae": nn.functional.l1_loss(prediction, batch[1])}

    kept = Kept()
    trainer_of(network(), loss, callbacks=[kept], log_every=4).fit(pairs())
    assert [step for step, values in kept.lines if "mae" in values] == [4, 8, 12]


# The numbers of steps are read as they were recorded


CPU = torch.device("cpu")


def recorded(readout: Readout, values: list[float]) -> None:
    for value in values:
        readout.record({"loss": torch.tensor(value), "norm": torch.tensor(10 * value)})
        readout.count += 1


def test_windows_hold_the_numbers_of_their_steps() -> None:
    readout = Readout(CPU, capacity=4)
    recorded(readout, [1.0, 2.0, 3.0])
    assert readout.window().column("loss") == [1.0, 2.0, 3.0]
    readout.take()
    recorded(readout, [4.0])
    latest = readout.latest()
    assert latest.tolist() == [4.0, 40.0]
    readout.take()
    first, second = readout.ready()
    assert (first.first, first.column("loss"), first.column("norm")) == (0, [1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    assert (second.first, second.column("loss")) == (3, [4.0])
    assert first.means([True, False, True]) == {"loss": 2.0, "norm": 20.0}
    assert readout.ready() == []
    readout.take()
    assert readout.ready() == [], "an empty window is not one"


def test_what_was_not_read_yet_is_in_the_state() -> None:
    one, other = Readout(CPU, capacity=3), Readout(CPU, capacity=3)
    recorded(one, [1.0, 2.0])
    one.take()
    recorded(one, [3.0])
    other.load_state_dict(one.state_dict())
    for readout in (one, other):
        recorded(readout, [4.0, 5.0])
        readout.take()
    assert [window.column("loss") for window in other.ready()] == [window.column("loss") for window in one.ready()]
    one.take()
    recorded(one, [6.0])
    one.take()
    one.drop()
    assert one.ready() == []
