"""Rows of packed pieces: the kernel does what its slow twin does, nothing is lost or doubled, and hardly a position is empty."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from tests.harness import num_examples

import stoker
from stoker_recipes import time_moe
from stoker_recipes.time_moe.batches import (
    LEAST_CUT,
    PADDING,
    SLACK_SHARE,
    Batches,
    CompatRows,
    FirstBatches,
    PackedRows,
    pack_rows,
)
from stoker_recipes.time_moe.data import Corpus, open_corpus
from stoker_recipes.time_moe.dataset import CompatSamples, CorpusScales, Pieces

Array = npt.NDArray[Any]


def pack_slowly(counts: list[int], length: int) -> list[list[tuple[int, int, int]]]:
    """The twin: for each row (piece, positions before, positions), by looking at all pieces that wait."""
    slack = length // SLACK_SHARE
    least = max(1, min(LEAST_CUT, slack))
    waiting = [(i, 0, count) for i, count in enumerate(counts) if count]  # those of one size in the order of their coming
    rows = []
    while waiting:
        row, free = [], length
        while waiting and free:
            fits = [one for one in waiting if one[2] <= free]
            size = max(one[2] for one in fits or waiting)
            chosen = next(one for one in waiting if one[2] == size)
            take = size if fits else min(free, size - least)
            if not fits and (free <= slack or take < least):
                break
            waiting.remove(chosen)
            row.append((chosen[0], chosen[1], take))
            free -= take
            if not fits:
                waiting.append((chosen[0], chosen[1] + take, size - take))
        rows.append(row)
    return rows


def rows_of(counts: list[int], length: int) -> list[list[tuple[int, int, int]]]:
    found = pack_rows(np.array(counts, dtype=np.int64), length)
    triples = list(zip(found.pieces.tolist(), found.skips.tolist(), found.counts.tolist(), strict=True))
    return [triples[begin:end] for begin, end in zip(found.bounds[:-1], found.bounds[1:], strict=True)]


@settings(max_examples=num_examples(150), deadline=None)
@given(st.integers(1, 300), st.data())
def test_the_kernel_packs_as_its_slow_twin(length: int, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, length), max_size=60))
    assert rows_of(counts, length) == pack_slowly(counts, length)


MIXES = {"m1_monthly": 131, "kdd_cup_2018": 302, "beijing_air": 688, "wiki-rolling": 852}


def lengths_around(mean: int, *, spread: str, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    number = 400_000 // mean
    if spread == "equal":
        return np.full(number, mean)
    if spread == "uniform":
        return rng.integers(mean // 2, mean * 3 // 2, number)
    return np.maximum(2, rng.lognormal(np.log(mean) - 0.5, 1.0, number)).astype(np.int64)


def rows_over(lengths: Array, length: int, **options: Any) -> PackedRows:
    series = np.random.default_rng(1).normal(size=int(lengths.sum())).astype(np.float32)
    corpus = open_corpus(stoker.Store.from_arrays(x=series, lengths=lengths))
    return PackedRows(Pieces(corpus, length), CorpusScales(corpus, "zero"), seed=3, **options)


@pytest.mark.parametrize("length", [2048, 4096])
@pytest.mark.parametrize("spread", ["equal", "uniform", "lognormal"])
@pytest.mark.parametrize("mean", MIXES.values(), ids=MIXES)
def test_at_least_97_percent_of_positions_are_targets(mean: int, spread: str, length: int) -> None:
    rows = rows_over(lengths_around(mean, spread=spread), length)
    assert rows.packed
    assert rows.pieces.filled < 0.6, "one piece a row would be mostly padding"
    useful = rows.pieces.num_positions / (rows.count_rows(0) * length)
    assert useful >= 0.97


def corpus_of_ramps(lengths: list[int]) -> Corpus:
    """Each point is a number of its own, so that what is in a batch can be told."""
    values = np.arange(sum(lengths), dtype=np.float64)
    return open_corpus(stoker.Store.from_arrays(x=values, lengths=lengths))


def test_batches_hold_every_target_once_per_epoch_in_segments_of_one_series() -> None:
    lengths = np.random.default_rng(0).integers(1, 90, 200).tolist()
    corpus = corpus_of_ramps(lengths)
    rows = PackedRows(Pieces(corpus, 64), CorpusScales(corpus, "none"), seed=0)
    assert rows.packed
    seen = []
    for batch in FirstBatches(rows, batch_size=7, most=10**6):
        x, y, mask, segments = (batch[name].numpy() for name in ("x", "y", "mask", "segments"))
        assert ((segments == PADDING) == ~mask).all()
        assert (x[~mask] == 0).all()
        assert (y[mask] == x[mask] + 1).all()
        same = (segments[:, 1:] == segments[:, :-1]) & mask[:, 1:]
        assert (x[:, 1:][same] == y[:, :-1][same]).all(), "positions of a segment follow each other"
        seen += y[mask].astype(int).tolist()
        assert (batch["valid"].sum() == 7) or not mask[int(batch["valid"].sum()) :].any()
    begins = set(np.cumsum([0, *lengths]).tolist())
    assert sorted(seen) == [point for point in range(sum(lengths)) if point not in begins]


SMALL = time_moe.Size(hidden=16, intermediate=16, layers=2, heads=2, experts=3, top_k=2, horizons=(1, 4))


def test_the_loss_of_packed_series_is_that_of_the_same_series_one_per_row() -> None:
    lengths = [1 + positions for short in range(1, 21) for positions in (short, 64 - short)]  # pairs that fill a row
    values = [np.cumsum(np.random.default_rng(i).normal(size=length)) for i, length in enumerate(lengths)]
    corpus = open_corpus(stoker.Store.from_arrays(x=values))
    torch.manual_seed(0)
    # Experts are balanced over all positions, padding too, so that part of the loss is left out.
    model = time_moe.TimeMoe(dataclasses.replace(SMALL, aux_factor=0.0)).double()
    losses = []
    for packed in (True, False):
        rows = PackedRows(Pieces(corpus, 64), CorpusScales(corpus, "zero"), seed=0, packed=packed)
        pool = rows.pool(0, 0)
        assert not packed or len(pool.counts) == len(lengths), "none is cut"
        [batch] = FirstBatches(rows, batch_size=pool.num_rows, most=1)
        batch = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.items()}
        losses.append(time_moe.time_moe_loss(model, batch).item())
        if packed:
            mixed = time_moe.time_moe_loss(model, {name: tensor for name, tensor in batch.items() if name != "segments"}).item()
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert abs(mixed - losses[0]) > 1e-6, "negative control: without segments, series see each other"


def test_values_are_scaled_in_float64_and_missing_ones_are_not_targets() -> None:
    values = np.array([5.0, 7.0, np.nan, 9.0, np.inf, 1.0])
    corpus = open_corpus(stoker.Store.from_arrays(x=[values]))
    batch = next(
        iter(Batches(PackedRows(Pieces(corpus, 8), CorpusScales(corpus, "zero"), seed=0, packed=True), batch_size=1, steps=1))
    )
    scaled = ((values - 5.5) / np.array([5.0, 7.0, 9.0, 1.0]).std()).astype(np.float32)
    expected = np.where(np.isfinite(scaled), scaled, np.float32(0))
    assert batch["x"][0, :5].numpy().tobytes() == expected[:5].tobytes()
    assert batch["y"][0, :5].numpy().tobytes() == expected[1:].tobytes()
    assert batch["mask"][0].tolist() == [True, False, True, False, True, False, False, False]


def many_batches(**options: Any) -> Batches:
    return Batches(rows_over(lengths_around(60, spread="lognormal")[:900], 128), **{"batch_size": 8, "steps": 40, **options})


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_stopped_pass_resumes_where_it_was() -> None:
    whole = many_batches()
    expected = [*whole, *whole]
    assert len(expected) == 80
    stopped = many_batches()
    before = stopped.state_dict()
    entries = iter(stopped)
    for _ in range(13):
        next(entries)
    state = stopped.state_dict()
    assert state["epoch"] == 0
    resumed = many_batches()
    resumed.load_state_dict(state)
    rest = [*resumed, *resumed]
    assert len(rest) == 67
    assert all(map(same, rest, expected[13:]))
    assert resumed.state_dict()["epoch"] == 2
    assert whole.state_after(before, 13) == state
    assert whole.state_after(before, 40)["epoch"] == 1


def test_ranks_share_the_rows_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(many_batches(batch_size=8, steps=20))
    parts = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        parts.append(list(many_batches(batch_size=4, steps=20)))
    for together, first, second in zip(whole, *parts, strict=True):
        assert torch.equal(together["x"], torch.cat([first["x"], second["x"]]))


def test_compat_rows_give_each_window_once() -> None:
    corpus = corpus_of_ramps([20, 9, 3, 40])
    samples = CompatSamples(corpus, 8)
    batches = Batches(CompatRows(samples, 8, seed=0), batch_size=len(samples), steps=2)
    first, second = batches
    assert not torch.equal(first["x"], second["x"])
    wanted = samples.gather(np.arange(len(samples)))
    for batch in (first, second):
        order = batch["x"][:, 0].argsort()
        assert torch.equal(batch["x"][order], wanted["input_ids"])
        assert torch.equal(batch["mask"][order], wanted["loss_masks"].bool())
