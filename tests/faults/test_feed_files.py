"""Files that change or are larger than numbers of 32 bits, while they are fed from."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.faults import feeding
from tests.harness import Zygote, seal_manifest

import stoker
from stoker import Feed, Shuffle, Store, Windows
from stoker.errors import StoreDamagedError
from stoker.store import open_store
from stoker.store import shards as shards
from stoker.store.manifest import MANIFEST_NAME


def some_pages() -> Store:
    return Store.from_arrays(x=[np.arange(5000.0) + i / 8 for i in range(8)])


@pytest.mark.parametrize("residency", ["host", "stream"])
def test_a_store_that_is_removed_while_it_is_read_is_read_to_its_end(residency: str, tmp_path: Path, torch_zygote: Zygote) -> None:
    some_pages().save(tmp_path / "s")
    found = torch_zygote.run(feeding.unlink_while_reading, path=tmp_path / "s", residency=residency).check()
    feed = Feed(some_pages(), Windows(64, stride=64), batch_size=8, order=Shuffle())
    assert found == [batch["x"][:, 0].tolist() for batch in feed]
    assert not list((tmp_path / "s").iterdir())


@pytest.mark.promise("P7")
def test_a_file_that_is_cut_off_while_it_is_read_kills_the_process_and_the_next_open_names_it(
    tmp_path: Path, torch_zygote: Zygote
) -> None:
    """The one thing that cannot be caught: a mapped page that is no longer there."""
    some_pages().save(tmp_path / "s")
    assert torch_zygote.run(feeding.truncate_while_reading, path=tmp_path / "s").signal == signal.SIGBUS
    with pytest.raises(StoreDamagedError, match=r"has 4,096 bytes, but 320,128 are expected: it holds column 'x'"):
        open_store(tmp_path / "s")


MARKS = [0, 1, 2**31 - 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, 2**32 + 7, 5 * 2**30 - 2, 5 * 2**30 - 1]
BOUNDS = [0, 2**31 - 1, 2**32 + 5, 2**32 + 6, 5 * 2**30]


@pytest.fixture(scope="module")
def vast(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of 5 GiB of which a few kB are on disk: a hole with a mark here and there."""
    folder = tmp_path_factory.mktemp("vast") / "s"
    small = Store.from_arrays(lengths=[1] * (len(BOUNDS) - 1), x=np.zeros(4, dtype=np.uint8)).save(folder)
    tree = msgspec.json.decode((folder / MANIFEST_NAME).read_bytes())
    size = BOUNDS[-1]
    column = tree["columns"][0]["values"]
    column |= {"shape": [size], "blocks": ["0" * 16] * (size // (16 << 20)), "file": "00000000000000aa.npy"}
    with (folder / column["file"]).open("wb") as file:
        file.write(shards.header("|u1", [size]))
        file.truncate(128 + size)
        for mark in MARKS:
            os.pwrite(file.fileno(), bytes([mark % 251 + 1]), 128 + mark)
    offsets = np.array(BOUNDS, dtype="<i8")
    tree |= {"num_steps": size, "length": None}
    blocks = [shards.hash_block(offsets)]
    tree["offsets"] = {"file": "00000000000000bb.npy", "dtype": "<i8", "shape": [len(BOUNDS)], "blocks": blocks}
    (folder / "00000000000000bb.npy").write_bytes(shards.header("<i8", [len(BOUNDS)]) + offsets.tobytes())
    (folder / MANIFEST_NAME).chmod(0o644)
    (folder / MANIFEST_NAME).write_bytes(seal_manifest(tree))
    assert small.num_steps == 4
    return open_store(folder)


def expected(start: int, count: int) -> list[int]:
    return [step % 251 + 1 if step in MARKS else 0 for step in range(start, start + count)]


@pytest.mark.parametrize(
    ("length", "stride", "residency"),
    [
        (3, 1, "host"),
        pytest.param(3, 1, "stream", marks=pytest.mark.slow),  # its read-ahead goes through much of the hole
        (4, 2**20 + 1, "host"),
        (4, 2**20 + 1, "stream"),
    ],
)
def test_windows_beyond_the_reach_of_32_bits(length: int, stride: int, residency: str, vast: Store) -> None:
    feed = Feed(
        vast,
        Windows(length, stride=stride, tail="drop"),
        batch_size=8,  # few, as each sample is a page of its own
        loading=stoker.feed.Loading(residency=residency, threads=0, prefetch=1),
        order=Shuffle(),
        returns=stoker.feed.Returns(index=True),
    )
    counts = [max(0, (stop - start - length) // stride + 1) for start, stop in itertools.pairwise(BOUNDS)]
    assert feed.num_samples == sum(counts)
    dataset = feed.as_dataset()
    firsts = np.cumsum([0, *counts])
    asked = [
        (series, number) for series, count in enumerate(counts) for number in {0, 1, count // 2, count - 1} if 0 <= number < count
    ]
    batch = dataset[[int(firsts[series]) + number for series, number in asked]]
    assert batch["x"].tolist() == [expected(BOUNDS[series] + number * stride, length) for series, number in asked]
    whole = next(iter(feed))
    assert len(set(whole["sample"].tolist())) == 8
