"""The profile of a loader: stages of its time, and what one worker reads."""

from __future__ import annotations

import functools
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stoker.diagnose import profilers
from stoker.diagnose import profilers as module
from stoker.diagnose.measurements import Reads
from stoker.diagnose.profilers import profile_iterable, profile_loader

ROWS, FILES = 8, 4
counts_bytes = pytest.mark.skipif(not Path(module.COUNTS).exists(), reason="the system does not count what a process reads")


class Files(Dataset[Any]):
    """Rows of several files, read one by one in a way that a test chooses."""

    def __init__(self, folder: Path, read: Callable[[Path], np.ndarray[Any, Any]]) -> None:
        self.files, self.read = sorted(folder.iterdir()), read

    def __len__(self) -> int:
        return len(self.files) * ROWS

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor(self.read(self.files[number // ROWS])[number % ROWS])


class Batches(Files):
    """The same, as whole batches."""

    def __getitems__(self, numbers: list[int]) -> list[torch.Tensor]:
        return [self[number] for number in numbers]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from torch.ones(3, 2)


def write(folder: Path, kind: str) -> None:
    values = np.arange(ROWS, dtype=np.float32)
    for number in range(FILES):
        if kind == "npy":
            np.save(folder / f"{number}.npy", values)
        elif kind == "npz":
            np.savez(folder / f"{number}.npz", x=values)
        elif kind == "parquet":
            pq.write_table(pa.table({"x": values}), folder / f"{number}.parquet")
        else:
            (folder / f"{number}.json").write_bytes(zlib.compress(json.dumps(values.tolist()).encode()))


def from_json(file: Path) -> np.ndarray[Any, Any]:
    with open(file, "rb") as opened:  # noqa: PTH123
        return np.array(json.loads(zlib.decompress(opened.read())))


def from_parquet(file: Path) -> np.ndarray[Any, Any]:
    return pq.read_table(str(file)).column("x").to_numpy()


def from_archive(file: Path) -> np.ndarray[Any, Any]:
    with np.load(file) as archive:
        values: np.ndarray[Any, Any] = archive["x"]
        return values


READERS = {"npy": np.load, "npz": from_archive, "parquet": from_parquet, "json": from_json}


def reads_of(dataset: Dataset[Any], **options: Any) -> Reads:
    return profile_loader(DataLoader(dataset, batch_size=4, **options), seconds=0.0).reads


def test_a_loader_is_divided_into_its_stages(tmp_path: Path) -> None:
    write(tmp_path, "json")
    profile = profile_loader(DataLoader(Files(tmp_path, from_json), batch_size=4), seconds=0.05)
    assert set(profile.stages) == {"read", "decode", "transform", "collate"}
    assert all(share > 0 for share in profile.stages.values())
    assert sum(profile.stages.values()) == pytest.approx(1)


@pytest.mark.parametrize("loader", [DataLoader(Stream(), batch_size=2), DataLoader(Stream(), batch_size=None)])
def test_a_stream_is_begun_again_as_often_as_needed(loader: DataLoader[Any]) -> None:
    profile = profile_loader(loader, seconds=0.01)
    assert profile.stages["collate"] > 0
    assert profile.reads.cache_hits is None, "it reads no file"


@pytest.mark.parametrize("kind", READERS)
def test_a_file_counts_once_for_a_sample(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind)
    reads = reads_of(Files(tmp_path, READERS[kind]))
    assert (reads.batches, reads.samples, reads.cache_hits) == (2, 8, 0.0)
    assert (reads.files, reads.reads, reads.reads_a_file) == (1, 4.0, 8.0), "two batches of four, all of one file"


@pytest.mark.parametrize("kind", READERS)
def test_samples_that_a_cache_has_are_hits(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind)
    kept = functools.lru_cache(maxsize=1)(READERS[kind])
    numbers = [0, 1, 8, 9, 0, 1, 8, 9]
    reads = reads_of(Files(tmp_path, kept), sampler=numbers)
    assert reads.cache_hits == 0.5
    assert (reads.files, reads.reads_a_file) == (2, 2.0)


def test_a_worker_makes_every_nth_batch(tmp_path: Path) -> None:
    write(tmp_path, "npy")
    alone, one_of_two = (reads_of(Files(tmp_path, np.load), num_workers=number) for number in (1, 2))
    assert (alone.files, one_of_two.files) == (1, 2), "the first two batches are of one file, the second and the fourth of two"


def test_few_batches_are_made_where_one_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 10**13, 10**9))
    monkeypatch.setattr(profilers, "now_ns", lambda: next(ticks))
    assert profile_iterable(object, seconds=0.5).reads.batches == 1


def test_a_batch_is_a_sample_where_the_data_set_gives_whole_ones(tmp_path: Path) -> None:
    write(tmp_path, "npy")
    reads = reads_of(Batches(tmp_path, np.load), sampler=[0, 8, 16, 24] * 2)
    assert (reads.samples, reads.files, reads.reads_a_file) == (2, FILES, 2.0)


@counts_bytes
def test_bytes_are_those_that_were_asked_for_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(5000))
    handle = os.open(tmp_path / "a", os.O_RDONLY)

    def pull() -> bytes:
        return os.pread(handle, 1000, 0)

    reads = profile_iterable(pull, seconds=0.0).reads
    os.close(handle)
    assert reads.bytes_read == 1000.0
    assert reads.cache_hits == 0.0, "although no name is known"
    assert reads.reads_a_file is None


def test_what_collating_reads_is_counted_by_batches(tmp_path: Path) -> None:
    write(tmp_path, "npy")

    def load(numbers: list[int]) -> Any:
        return [np.load(tmp_path / f"{number}.npy") for number in numbers]

    reads = profile_loader(DataLoader(range(FILES), batch_size=2, collate_fn=load), seconds=0.0).reads  # type: ignore[arg-type]
    assert (reads.files, reads.reads, reads.cache_hits) == (4, 2.0, None)
    assert reads.bytes_read is None or reads.bytes_read >= 2 * 4 * ROWS


def test_an_open_file_that_is_read_on_is_known(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100_000))
    with (tmp_path / "a").open("rb") as file:
        reads = profile_iterable(lambda: file.read(10), seconds=0.0).reads
    assert (reads.files, reads.reads_a_file) == (1, 2.0)


def test_negative_control_what_is_in_memory_or_written_is_not_a_read(tmp_path: Path) -> None:
    def pull() -> bytes:
        with open(tmp_path / "log", "ab") as log:  # noqa: PTH123
            log.write(b"x")
        return io.BytesIO(bytes(10)).read()

    reads = profile_iterable(pull, seconds=0.0).reads
    assert (reads.files, reads.cache_hits) == (0, None)


def test_negative_control_without_its_own_reads_left_out_all_samples_would_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = module.Reading._counted

    def forgetting(self: module.Reading) -> module.Counted:
        self._own = 0
        return counted(self)

    assert profile_iterable(object, seconds=0.0).reads.cache_hits is None
    if Path(module.COUNTS).exists():
        monkeypatch.setattr(module.Reading, "_counted", forgetting)
        assert profile_iterable(object, seconds=0.0).reads.cache_hits == 0.0


def test_where_the_system_does_not_count_names_still_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTS", "/there/is/none")
    write(tmp_path, "npy")
    kept = functools.lru_cache(maxsize=1)(np.load)
    reads = reads_of(Files(tmp_path, kept), sampler=[0, 1, 8, 9] * 2)
    assert (reads.bytes_read, reads.bytes_from_disk) == (None, None)
    assert (reads.cache_hits, reads.files) == (0.5, 2)


def test_nothing_is_heard_afterwards() -> None:
    def pulls() -> Iterator[int]:
        yield from range(10)

    numbers, before = pulls(), list(module._open_readings)
    heard: list[int] = []

    def pull() -> int:
        heard.append(len(module._open_readings) - len(before))
        return next(numbers)

    profile_iterable(pull, seconds=0.0)
    assert max(heard) == 1, "the control: it listens meanwhile"
    assert module._open_readings == before
