"""Stages of a loader: each call counts for the outermost stage that it is in."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stoker.diagnose import stages as module
from stoker.diagnose.stages import Stages, profile_loader


class Files(Dataset[Any]):
    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> torch.Tensor:
        data = self.files[number].read_bytes()
        return torch.tensor(json.loads(zlib.decompress(data)), dtype=torch.float32)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from torch.ones(3, 2)


def test_a_loader_is_divided_into_its_stages(tmp_path: Path) -> None:
    text = zlib.compress(json.dumps(list(range(1000))).encode())
    for number in range(8):
        (tmp_path / f"{number}.json").write_bytes(text)
    profile = profile_loader(DataLoader(Files(tmp_path), batch_size=4), seconds=0.05)
    assert profile is not None
    assert set(profile.stages) == {"read", "decode", "transform", "collate"}
    assert all(share > 0 for share in profile.stages.values())
    assert sum(profile.stages.values()) == pytest.approx(1)
    assert profile.bytes_read_a_batch is not None
    assert profile.bytes_read_a_batch >= 4 * len(text)


@pytest.mark.parametrize("loader", [DataLoader(Stream(), batch_size=2), DataLoader(Stream(), batch_size=None)])
def test_a_stream_is_begun_anew_as_often_as_needed(loader: DataLoader[Any]) -> None:
    profile = profile_loader(loader, seconds=0.01)
    assert profile is not None
    assert profile.stages["collate"] > 0


def test_the_outermost_stage_has_all_the_time_within(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 10_000, 10))
    monkeypatch.setattr(module, "now_ns", lambda: next(ticks))
    stages = Stages()

    def collate(samples: Any) -> Any:
        return [json.loads(one) for one in samples]

    with stages:
        module._collated(collate, ["1", "2"])
    shares = stages.shares()
    assert shares["decode"] == 0
    assert shares["collate"] > 0
