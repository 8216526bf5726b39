"""Transforms with a generator: what they draw is a function of (seed, epoch, position), so resumed runs get the same batches."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.feed.twin import assert_same_batch
from tests.harness.flat_feed import flat_feed
from tests.sampling.twins import derive, epoch_key

from stoker import BlockShuffle, Feed, Sequential, Shuffle, Store, Windows
from stoker.feed import prefetch
from stoker.feed import transform as transforms
from stoker.testing import assert_resumes_exactly

STORE = Store.from_arrays(x=[np.arange(50, dtype=np.float32), np.arange(23, dtype=np.float32)])
VIEW = Windows(4, stride=2, horizon=1)
TRANSFORMS = 21


def noisy(batch: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Noise, and samples in another order, by a generator of NumPy or of torch."""
    x, target = batch["x"], batch["x_target"]
    if isinstance(rng, np.random.Generator):
        places = rng.permutation(len(x))
        return {**batch, "x": x[places] + rng.standard_normal(x.shape, dtype=np.float32), "x_target": target[places]}
    places = torch.randperm(len(x), generator=rng)
    return {**batch, "x": x[places] + torch.randn(x.shape, generator=rng), "x_target": target[places]}


def make_feed(**options: Any) -> Feed:
    options = {"batch_size": 5, "order": Shuffle(3), "return_index": True, **options}
    return flat_feed(STORE, VIEW, **options)


@pytest.mark.promise("P5")
@pytest.mark.parametrize(
    ("threads", "kind"),
    [
        (0, "device_transform"),
        (3, "transform"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((0, "transform"), (1, "transform"), (1, "device_transform"), (3, "device_transform"))
        ),
    ],
)
def test_resumes_exactly_with_random_augmentation_on_any_number_of_ranks(threads: int, kind: str) -> None:
    make = partial(make_feed, threads=threads, **{kind: noisy})
    assert_resumes_exactly(make, worlds=(1, 2, 3), cuts=[0, 1, 3])


@pytest.mark.parametrize("kind", ["transform", "device_transform"])
@pytest.mark.parametrize("order", [Sequential(), Shuffle(3), BlockShuffle(1, 4, 8)], ids=str)
def test_threads_and_residency_do_not_change_what_is_drawn(order: Any, kind: str) -> None:
    feeds = [make_feed(threads=threads, order=order, **{kind: noisy}) for threads in (0, 1, 4)]
    feeds += [make_feed(residency="device", order=order, device_transform=noisy)] if kind == "device_transform" else []
    for batches in zip(*feeds, strict=True):
        for other in batches[1:]:
            assert_same_batch(batches[0], other)


@pytest.mark.promise("P5")
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (0, 3), (2, 3)])
def test_the_generator_is_seeded_by_seed_epoch_and_first_position(rank: int, world_size: int) -> None:
    """One function of plain integers says which numbers any batch gets, in NumPy and in torch."""
    arrays = make_feed(rank=rank, world_size=world_size, transform=lambda batch, rng: {"drawn": rng.random(3)})
    tensors = make_feed(
        rank=rank, world_size=world_size, device_transform=lambda batch, rng: {"drawn": torch.rand(3, generator=rng)}
    )
    for epoch in range(2):
        for step, (one, other) in enumerate(zip(arrays, tensors, strict=True)):
            start, stop = step * 5 * world_size, min((step + 1) * 5 * world_size, arrays.num_samples)
            position = start + (stop - start) * rank // world_size
            seed = derive(epoch_key(3, epoch, TRANSFORMS), position) >> 1
            assert one["drawn"].tolist() == np.random.default_rng(seed).random(3).tolist()
            assert other["drawn"].equal(torch.rand(3, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.promise("P5", control=True)
def test_negative_control_one_generator_for_all_batches_does_not_resume() -> None:
    generator = np.random.default_rng(0)
    make = partial(make_feed, threads=0, transform=partial(noisy, rng=generator))
    with pytest.raises(AssertionError):
        assert_resumes_exactly(make, cuts=[2])


@pytest.mark.promise("P5", control=True)
def test_negative_control_a_seed_without_the_position_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch.Steps, "seed_of", lambda self, step: 0)
    drawn = [float(batch["drawn"]) for batch in make_feed(transform=lambda batch, rng: {"drawn": rng.random(1)})]
    assert len(set(drawn)) == 1


class Own:
    def __call__(self, batch: Any, generator: Any) -> Any:
        return batch


def _keyword(batch: Any, *, rng: Any) -> Any:
    return batch


def _default(batch: Any, rng: Any = None) -> Any:
    return batch


def _option(batch: Any, scale: float = 2.0) -> Any:
    return batch


@pytest.mark.parametrize(
    ("transform", "parameter"),
    [
        (noisy, "rng"),
        (_keyword, "rng"),
        (_default, "rng"),
        (Own(), 1),
        (lambda batch, source: batch, 1),
        (_option, None),
        (lambda batch: batch, None),
        (lambda *batch: batch[0], None),
        (partial(noisy, rng=None), None),
        (dict, None),
    ],
)
def test_transforms_that_take_a_generator_get_one(transform: Any, parameter: Any) -> None:
    assert transforms.rng_parameter(transform) == parameter
    next(iter(make_feed(transform=transform if parameter else lambda batch: batch)))


@pytest.mark.parametrize("residency", ["host", "device"])
def test_device_transforms_get_tensors_after_the_gather(residency: str) -> None:
    seen = []

    def double(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        seen.append(batch)
        return {"twice": batch["x"] * 2}

    plain, feed = make_feed(residency=residency), make_feed(residency=residency, device_transform=double)
    for before, after in zip(plain, feed, strict=True):
        assert after["twice"].equal(before["x"] * 2)
        assert after.keys() == {"twice", "valid"}
    assert all(isinstance(tensor, torch.Tensor) for batch in seen for tensor in batch.values())
