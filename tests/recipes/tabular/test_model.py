"""The fused model computes what the plain one does: logits, losses and gradients, for any order of columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.before.tabular_heads import PlainModel

from stoker.errors import OptionError
from stoker_recipes.tabular.layout import ModelLayout, Size, make_layout
from stoker_recipes.tabular.model import WEIGHTS, TabularModel, set_frequencies

COLUMNS = [{"cat": 5}, {"bin": 33, "fine": 32}, {"nan": 2, "year": 3, "month": 12, "day": 31}, {"cat": 300}]
CONTEXT = [{"cat": 7}, {"bin": 100}]
CASES = {
    "flat": (None, 1, True), "sequence": (12, 1, False), "context": (12, 1, True), "digits": (345, 1, True),
    "compressed": (345, 6, True), "compressed flat": (None, 8, False),
}  # fmt: skip
"""Longest sequence, copies of the columns, with a context."""


def make_case(name: str, size: Size = "s") -> ModelLayout:
    max_length, copies, has_context = CASES[name]
    return make_layout(COLUMNS * copies, context=CONTEXT if has_context else (), max_length=max_length, median_length=5, size=size)


def random_batch(layout: ModelLayout, rng: np.random.Generator, *, rows: int = 4, steps: int = 5) -> dict[str, torch.Tensor]:
    shape = (rows, steps) if layout.is_sequence else (rows,)
    first = int(layout.is_sequence)
    rank = np.append(np.arange(first), first + rng.permutation(layout.num_columns - first))
    found = {
        "codes": torch.from_numpy(np.stack([rng.integers(0, sub.num_classes, shape) for sub in layout.subs], -1)),
        "rank": torch.from_numpy(rank),
        "weights": torch.from_numpy(rng.random((*shape, len(WEIGHTS) if layout.is_sequence else 1), dtype=np.float32)),
    }
    if layout.context:
        found["context"] = torch.from_numpy(np.stack([rng.integers(0, sub.num_classes, rows) for sub in layout.context], -1))
    return found


SLOW = {(size, name) for size in "ml" for name in ("compressed", "compressed flat")} | {("l", "sequence"), ("l", "digits")}
"""Up to 3.5 s each. Quick are all cases of size s, whose columns they have, and cases of their sizes with fewer columns."""


@pytest.mark.promise("P30")
@pytest.mark.parametrize(
    ("size", "name"),
    [
        pytest.param(size, name, marks=[pytest.mark.slow] if (size, name) in SLOW else [])
        for size in ("s", "m", "l")
        for name in CASES
    ],
)
def test_logits_and_gradients_are_those_of_the_plain_model(rng: np.random.Generator, name: str, size: Size) -> None:
    layout = make_case(name, size)
    model = TabularModel(layout, seed=1).eval()
    plain = PlainModel(layout).load(model.upstream_weights()).eval()
    for _ in range(3):
        batch = random_batch(layout, rng)
        ours, theirs = (one(batch["codes"], batch["rank"], batch.get("context")) for one in (model.logits, plain))
        assert ours.keys() == theirs.keys()
        for sub, logits in ours.items():
            torch.testing.assert_close(logits, theirs[sub], atol=1e-5, rtol=1e-5)
    loss, same = model(batch), plain.loss(batch)
    torch.testing.assert_close(loss, same, atol=1e-4, rtol=1e-5)
    loss.backward()
    same.backward()
    gradients = TabularModel(layout)
    for mine, parameter in zip(gradients.parameters(), model.parameters(), strict=True):
        mine.data = torch.zeros_like(mine) if parameter.grad is None else parameter.grad
    found = gradients.upstream_weights()
    reference = PlainModel(layout)
    reference.load_state_dict({n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in plain.named_parameters()})
    loaded = PlainModel(layout).load(found)
    dead = ("regress", "history")  # weights of inputs that are always zero have no place in the fused ones
    for (key, mine), other in zip(loaded.named_parameters(), reference.parameters(), strict=True):
        if key.startswith(dead) and mine.dim() == 2:
            mine, other = mine[:, (mine != 0).any(0)], other[:, (mine != 0).any(0)]
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-3)


@pytest.mark.promise("P30")
@pytest.mark.parametrize("name", CASES)
def test_a_head_sees_nothing_that_comes_later(rng: np.random.Generator, name: str) -> None:
    layout = make_case(name)
    model = TabularModel(layout, seed=1).eval()
    batch = random_batch(layout, rng)
    rank = batch["rank"]
    before = model.logits(batch["codes"], rank, batch.get("context"))
    last = int(rank.argmax())
    changed = batch["codes"].clone()
    for number in layout.of_column(last):
        changed[..., number] = (changed[..., number] + 1) % layout.subs[number].num_classes
    after = model.logits(changed, rank, batch.get("context"))
    first = layout.of_column(last)[0]
    for number, sub in enumerate(layout.subs):
        if sub.hidden and (sub.column != last or number == first):
            same = torch.equal(before[sub.name], after[sub.name])
            if layout.is_sequence:  # later events see it
                same = torch.equal(before[sub.name][:, 0], after[sub.name][:, 0])
                assert not torch.equal(before[sub.name][:, 1:], after[sub.name][:, 1:])
            assert same, sub.name


def test_heads_begin_with_frequencies() -> None:
    layout = make_layout([{"cat": 3}], size="s")
    model = TabularModel(layout).eval()
    set_frequencies(model, {0: np.array([2, 0, 1])})
    for weights in model.out_weights:
        torch.nn.init.zeros_(weights)
    logits = model.logits(torch.tensor([[0]]), torch.tensor([0]))["tgt:t0/c0__cat"]
    assert torch.softmax(logits, -1)[0].tolist() == pytest.approx([7 / 12, 1 / 12, 1 / 3])


@pytest.mark.parametrize("size", ["s", "l"])
def test_plain_operations_are_the_lstm(size: Size) -> None:
    model = TabularModel(make_layout([{"cat": 5}, {"bin": 9}], max_length=12, median_length=5, size=size), seed=3).eval()
    before = torch.randn(4, 7, model.seen_width)
    expected = model.history(before)
    model.is_plain = True
    assert torch.allclose(model.history(before), expected, atol=1e-6)


@pytest.mark.promise("P30")
@pytest.mark.parametrize("is_plain", [False, True])
def test_the_lstm_sees_the_context_at_each_step(rng: np.random.Generator, is_plain: bool) -> None:
    """The slow twin: an LSTM cell over steps, with the context beside each event. Without these weights it is TabularARGN's."""
    layout, theirs = (make_layout(COLUMNS, context=CONTEXT, max_length=12, size="s", feeds_context=one) for one in (True, False))
    model, plain = TabularModel(layout, seed=1).eval(), TabularModel(theirs).eval()
    model.is_plain = is_plain
    batch = random_batch(layout, rng)
    codes, context = batch["codes"].long(), batch["context"].long()
    given = model.encode_context(context)
    state = (torch.zeros(len(codes), layout.history[0]),) * 2
    found, events = [], model.embed(codes)[:, :, : model.seen_width]
    for step in range(codes.shape[1]):
        before = events[:, step - 1] if step else torch.zeros_like(events[:, 0])
        weights = [model.lstm.get_parameter(f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        state = torch.lstm_cell(torch.cat([before, given], 1), state, *weights)
        found.append(state[0])
    inputs = model.first_inputs(codes, context)
    begin, end = layout.context_width, layout.context_width + layout.history_width
    torch.testing.assert_close(inputs[..., begin:end], torch.stack(found, 1), atol=1e-5, rtol=1e-5)

    plain.load_upstream(model.upstream_weights())
    args = (codes, batch["rank"], context)
    assert any(not torch.allclose(one, plain.logits(*args)[name], atol=1e-4) for name, one in model.logits(*args).items())
    with torch.no_grad():
        model.lstm.get_parameter("weight_ih_l0")[:, model.seen_width :] = 0
    for name, one in model.logits(*args).items():
        torch.testing.assert_close(one, plain.logits(*args)[name], atol=1e-5, rtol=1e-5)
    with pytest.raises(OptionError, match=r"the weights have no .*context"):
        model.load_upstream(plain.upstream_weights())


def test_a_model_without_a_head_for_the_steps_left_has_the_other_logits(rng: np.random.Generator) -> None:
    layout, fewer = (make_layout(COLUMNS, max_length=12, size="s", predicts_left=one) for one in (True, False))
    whole, part = TabularModel(layout, seed=1).eval(), TabularModel(fewer).eval()
    part.load_upstream(whole.upstream_weights())
    batch = random_batch(layout, rng)
    ours, theirs = (one.logits(batch["codes"], batch["rank"]) for one in (part, whole))
    assert set(theirs) - set(ours) == {"tgt:/__ridx_cat"}
    for name, logits in ours.items():
        torch.testing.assert_close(logits, theirs[name], atol=1e-6, rtol=1e-6)
