"""Stages of a loader: reading, decoding, transforming, collating, and the lines and bytes of each.

Worker processes cannot be looked into, so some batches are made here, in the main process, the way a worker makes them: once under
the sampler, which names lines, and once under Python's profiling hook, which sees every call and so tells reads from the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from torch.utils.data import DataLoader, IterableDataset

from stoker.clock import now_ns
from stoker.diagnose.measurements import Blame
from stoker.diagnose.sampler import Sampler

LEAST_BATCHES, MOST_BATCHES = 2, 100
READS = {
    *("open", "open_code", "read", "readinto", "readline", "readlines", "read1", "pread", "preadv", "readall", "mmap", "fromfile"),
    *("read_csv", "read_parquet", "read_table", "read_row_group", "read_row_groups", "read_feather", "read_json", "read_hdf"),
    *("scan_parquet", "scan_csv", "loadtxt", "genfromtxt", "read_image", "read_file", "imread", "collect", "recv", "recv_into"),
    *("loadmat", "memmap", "safe_open", "load_file"),
}
READ_FILES = ("numpy/lib/_npyio_impl.py", "torch/serialization.py", "h5py/", "zarr/", "pyarrow/parquet/", "pandas/io/")
DECODES = {
    *(
        "decompress",
        "loads",
        "frombuffer",
        "imdecode",
        "decode",
        "decode_image",
        "decode_jpeg",
        "decode_png",
        "decode_video",
        "unpackb",
    ),
    *(
        "fromstring",
        "strptime",
        "fromisoformat",
        "b64decode",
        "unpack",
        "unpack_from",
        "iter_unpack",
        "to_pandas",
        "parse",
        "raw_decode",
    ),
}
DECODE_FILES = ("json/", "csv.py", "PIL/", "gzip.py", "soundfile", "_strptime.py")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What making a batch consists of."""

    stages: dict[str, float]
    functions: list[Blame]
    bytes_read_a_batch: float | None
    seconds_a_batch: float


def profile_loader(loader: DataLoader[Any], *, seconds: float = 0.5) -> Profile | None:
    """Make some batches of a DataLoader here and now; None where that cannot be done without its own iterator."""
    make = _maker(loader)
    if make is None:
        return None
    read_before = _bytes_read()
    with Sampler() as sampler:
        batches, spent = _make_some(make, seconds)
    read_after = _bytes_read()
    stages = Stages()
    with stages:
        _make_some(make, seconds)
    return Profile(
        stages=stages.shares(),
        functions=sampler.of_phase(),
        bytes_read_a_batch=(read_after - read_before) / batches if read_before is not None and read_after is not None else None,
        seconds_a_batch=spent / batches,
    )


def _maker(loader: DataLoader[Any]) -> Callable[[], object] | None:
    """A function that makes one batch as a worker would."""
    dataset: Any = loader.dataset
    collate: Any = loader.collate_fn
    if isinstance(dataset, IterableDataset):
        items: Iterator[Any] = iter(())

        def from_stream() -> object:
            nonlocal items
            number = loader.batch_size or 1
            samples = []
            for _ in range(number):
                sample = next(items, _END)
                if sample is _END:
                    items = iter(dataset)
                    sample = next(items)
                samples.append(sample)
            return _collated(collate, samples if loader.batch_size is not None else samples[0])

        return from_stream
    order: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    indices: Iterator[Any] = iter(())

    def from_numbers() -> object:
        nonlocal indices
        wanted: Any = next(indices, _END)
        if wanted is _END:
            indices = iter(order)
            wanted = next(indices)
        if loader.batch_sampler is None:
            return _collated(collate, dataset[wanted])
        many = getattr(dataset, "__getitems__", None)
        return _collated(collate, many(wanted) if many is not None else [dataset[one] for one in wanted])

    return from_numbers


_END = object()


def _collated(collate: Callable[[Any], object], samples: Any) -> object:
    """Whatever kind of callable it is, the time within this function is that of collating."""
    return collate(samples)


def _make_some(make: Callable[[], object], seconds: float) -> tuple[int, float]:
    begin, count = now_ns(), 0
    while count < MOST_BATCHES and (count < LEAST_BATCHES or now_ns() - begin < seconds * 1e9):
        make()
        count += 1
    return count, (now_ns() - begin) / 1e9


def _bytes_read() -> int | None:
    """Bytes that this process has asked of files so far, cached ones too; None where the system does not count."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return None
    return int(text.split("rchar:")[1].split()[0])


class Stages:
    """Time by stage, from calls and returns. The outermost call that has a stage takes all the time within it."""

    def __init__(self) -> None:
        self._ns = {"read": 0, "decode": 0, "collate": 0}
        self._stage: str | None = None
        self._depth = 0
        self._since = 0
        self._begin = 0
        self._whole = 0

    def __enter__(self) -> None:
        self._begin = now_ns()
        sys.setprofile(self._event)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._whole = now_ns() - self._begin

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            if self._stage is not None:
                self._depth += 1
                return
            stage = self._of_function(frame) if event == "call" else _of_name(getattr(argument, "__name__", ""))
            if stage is not None:
                self._stage, self._depth, self._since = stage, 0, now_ns()
        elif self._stage is not None:
            if self._depth:
                self._depth -= 1
                return
            self._ns[self._stage] += now_ns() - self._since
            self._stage = None

    def _of_function(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if code is _collated.__code__:
            return "collate"
        file = code.co_filename
        if any(one in file for one in READ_FILES):
            return "read"
        if any(one in file for one in DECODE_FILES):
            return "decode"
        return _of_name(code.co_name) if "site-packages" in file or "/lib/python" in file else None

    def shares(self) -> dict[str, float]:
        """Of the time of a batch; what is neither read, decoded nor collated is the dataset's own work."""
        whole = max(1, self._whole)
        shares = {stage: spent / whole for stage, spent in self._ns.items()}
        shares["transform"] = max(0.0, 1.0 - sum(shares.values()))
        return shares


def _of_name(name: str) -> str | None:
    return "read" if name in READS else "decode" if name in DECODES else None
