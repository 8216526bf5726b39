"""The Triton kernels: losses, gradients and draws are those of the code in torch. Without a GPU, TRITON_INTERPRET=1 runs them on a CPU."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from stoker.recipes.tabular import generation, model
from stoker.recipes.tabular.batches import EncodedSubjects, SubjectBatches, assemble
from stoker.recipes.tabular.generation import generate_codes
from stoker.recipes.tabular.layout import make_layout
from stoker.recipes.tabular.model import TabularModel

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
pytestmark = [] if DEVICE == "cpu" else [pytest.mark.gpu]
COLUMNS = [{"cat": 5}, {"bin": 83, "fine": 32}, {"nan": 2, "year": 3, "month": 12}, {"cat": 300}]


def use_kernels(monkeypatch: pytest.MonkeyPatch, *, used: bool) -> None:
    for module in (model, generation):
        monkeypatch.setattr(module, "uses_kernels", lambda values: used)


def loss_and_gradients(layout: Any, batch: dict[str, torch.Tensor], factor: float) -> tuple[float, dict[str, torch.Tensor]]:
    own = TabularModel(layout, seed=2).to(DEVICE).eval()
    loss = own(batch)
    (factor * loss).backward()
    return loss.item(), {name: one.grad for name, one in own.named_parameters() if one.grad is not None}


@pytest.mark.parametrize(("size", "max_length"), [("s", 9), ("l", 9), ("m", None)])
def test_losses_and_gradients_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, size: Any, max_length: int | None) -> None:
    rng = np.random.default_rng(0)
    layout = make_layout(COLUMNS, context=[{"cat": 3}], max_length=max_length, median_length=3, size=size)
    lengths = rng.integers(0, 10, 13) if max_length else np.ones(13, np.int64)
    data_subs = layout.subs[layout.num_positions :]
    codes = np.stack([rng.integers(0, sub.num_classes, lengths.sum()) for sub in data_subs], 1).astype(np.int16)
    data = EncodedSubjects.of(codes, np.cumsum(lengths) - lengths, lengths, rng.integers(0, 3, (13, 1)), torch.device(DEVICE))
    batch = next(iter(SubjectBatches(data, layout, np.arange(13), lengths=lengths, batch_size=13, seed=0)))
    made = assemble(layout, data, batch, 4.0)
    torch.backends.cudnn.enabled = False  # its LSTM rounds differently in other calls
    try:
        use_kernels(monkeypatch, used=False)
        expected, slow = loss_and_gradients(layout, made, 3.0)
        use_kernels(monkeypatch, used=True)
        found, fast = loss_and_gradients(layout, made, 3.0)
        again, repeated = loss_and_gradients(layout, made, 3.0)
    finally:
        torch.backends.cudnn.enabled = True
    assert found == pytest.approx(expected, rel=1e-6)
    assert set(fast) == set(slow)
    for name, one in slow.items():
        assert float((fast[name] - one).abs().max()) <= 2e-6 * max(1.0, float(one.abs().max())), name
    assert again == found
    assert all(torch.equal(repeated[name], one) for name, one in fast.items())  # bit for bit


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("num_classes", [2, 64, 83, 300])
def test_draws_are_those_of_torch(num_classes: int, temperature: float) -> None:
    from stoker.recipes.tabular.kernels import draw_column

    rng = torch.Generator().manual_seed(num_classes)
    rows, num_inputs, hidden, width = 70, 90, 24, 10
    base, inputs = torch.randn(rows, hidden + 3, generator=rng), torch.randn(rows, num_inputs, generator=rng)
    seen, matrix = torch.randn(num_inputs, hidden, generator=rng) / 9, torch.randn(hidden, num_classes, generator=rng)
    bias, table = torch.randn(num_classes, generator=rng), torch.randn(num_classes, width, generator=rng)
    bias[-1] = model.NEVER
    numbers = torch.rand(rows, generator=rng)
    numbers[0] = 1.0  # the last class that has a chance
    logits = torch.relu(base[:, 3:].double() + inputs.double() @ seen.double()) @ matrix.double() + bias.double()
    upto = torch.softmax(logits / temperature, -1).cumsum(-1)
    codes = torch.full((rows, 2), -1, device=DEVICE)
    given = [one.to(DEVICE) for one in (base, inputs.clone(), seen, matrix, bias, numbers, table)]
    draw_column(
        given[0][:, 3:], given[1], given[2], given[3], given[4], given[5], given[6], codes[:, 1], into=40, temperature=temperature
    )
    drawn = codes[:, 1].cpu()
    assert (codes[:, 0] == -1).all()
    assert int(drawn.max()) < num_classes - 1  # which is never generated
    before = torch.cat([torch.zeros(rows, 1, dtype=torch.float64), upto], 1).gather(1, drawn[:, None])[:, 0]
    assert (before < numbers + 1e-6).all()
    assert (numbers <= upto.gather(1, drawn[:, None])[:, 0] + 1e-6).all()
    expected = inputs.clone()
    expected[:, 40:50] = table[drawn]
    assert torch.equal(given[1].cpu(), expected)


@pytest.mark.parametrize("max_length", [6, None])
def test_generated_codes_are_those_of_torch_in_any_batch(monkeypatch: pytest.MonkeyPatch, max_length: int | None) -> None:
    own = TabularModel(make_layout(COLUMNS[:3], max_length=max_length, median_length=3, size="s"), seed=1).to(DEVICE)
    use_kernels(monkeypatch, used=False)
    expected = generate_codes(own, 60, seed=3)
    use_kernels(monkeypatch, used=True)
    found, few = generate_codes(own, 60, seed=3), generate_codes(own, 17, seed=3)
    assert (found.lengths == expected.lengths).all()
    assert (found.codes == expected.codes).all(1).mean() > 0.97  # a rounding may move a draw, and what follows it
    assert (few.codes == found.codes[: len(few.codes)]).all()
