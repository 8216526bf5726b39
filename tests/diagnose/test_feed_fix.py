"""Columns give what the dataset gives, bit for bit, or are not found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from stoker.diagnose import feed_fix
from stoker.diagnose.feed_fix import Columns, columns_of


class Series(torch.utils.data.Dataset[Any]):
    """Windows of one series, with the value after each."""

    def __init__(self, length: int = 7, stride: int = 3) -> None:
        self.values = np.random.default_rng(0).standard_normal((100, 2), dtype=np.float32)
        self.length, self.stride = length, stride

    def __len__(self) -> int:
        return (len(self.values) - self.length - 1) // self.stride + 1

    def __getitem__(self, number: int) -> dict[str, Any]:
        start = number * self.stride
        stop = start + self.length
        return {"x": torch.from_numpy(self.values[start:stop]), "y": self.values[stop], "next": self.values[stop - 1 : stop + 1]}


class Rows(torch.utils.data.Dataset[Any]):
    """Rows of two arrays, one of them as another type."""

    def __init__(self) -> None:
        self.data = {"x": torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), "y": np.arange(30)}

    def __len__(self) -> int:
        return 30

    def __getitem__(self, number: int) -> Any:
        return self.data["x"][number].double(), int(self.data["y"][number])


def padded(samples: list[Any]) -> torch.Tensor:
    longest = max(len(sample) for sample in samples)
    return torch.stack([torch.nn.functional.pad(sample, (0, longest - len(sample))) for sample in samples])


def assert_same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("dataset", [Series(), Series(stride=1), Series(length=1), Rows()])
def test_columns_gather_what_the_dataset_makes(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_fix, "_read_all", lambda *_, **__: "read all of it")
    found = columns_of(dataset, default_collate)
    assert isinstance(found, Columns)
    numbers = np.random.default_rng(1).permutation(len(dataset)).tolist()
    assert_same(found.__getitems__(numbers), default_collate([dataset[number] for number in numbers]))


def test_samples_that_are_computed_are_read_once() -> None:
    class Squares(Rows):
        def __getitem__(self, number: int) -> Any:
            return self.data["x"][number] ** 2, float(number)

    found = columns_of(Squares(), default_collate)
    assert isinstance(found, Columns)
    assert_same(found.__getitems__([29, 3, 3]), default_collate([Squares()[number] for number in (29, 3, 3)]))


def test_windows_of_a_series_that_repeats_itself_are_not_mistaken() -> None:
    dataset = Series(stride=2)
    dataset.values = np.tile(dataset.values[:5], (20, 1))
    found = columns_of(dataset, default_collate)
    assert isinstance(found, Columns)
    numbers = list(range(len(dataset)))
    assert_same(found.__getitems__(numbers), default_collate([dataset[number] for number in numbers]))


def test_what_depends_on_its_batch_has_no_columns() -> None:
    samples = [torch.ones(1 + number % 3) for number in range(30)]
    assert columns_of(samples, padded) == "samples of list depend on the others of their batch"


def test_what_is_too_large_or_takes_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [torch.rand(3) for _ in range(30)]
    monkeypatch.setattr(feed_fix, "MAX_BYTES", 100)
    assert "too much to read" in str(columns_of(samples, default_collate))
    monkeypatch.setattr(feed_fix, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(feed_fix, "MAX_SECONDS", 0.0)
    assert "too long" in str(columns_of(samples, default_collate))


def test_other_shapes_and_texts_have_no_columns() -> None:
    samples = [torch.ones(2 if number in range(5, 8) else 3) for number in range(3000)]
    assert columns_of(samples, padded) == "samples of list differ in their shapes"
    assert "not made of tensors" in str(columns_of(["a", "b"], default_collate))
