"""Stages of making a batch: the time of reading, decoding, transforming and collating, told by the names of what is called.

The law: the outermost call that has a stage takes all the time within it.
"""

from __future__ import annotations

import gc
import io
import sys
from types import FrameType
from typing import Any

from stoker.clock import now_ns
from stoker.diagnose.making import collated

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
            stage = stage_of(frame, event, argument)
            if stage is not None:
                self._stage, self._depth, self._since = stage, 0, now_ns()
        elif self._stage is not None:
            if self._depth:
                self._depth -= 1
                return
            self._ns[self._stage] += now_ns() - self._since
            self._stage = None

    def shares(self) -> dict[str, float]:
        """Of the time of a batch; what is neither read, decoded nor collated is the dataset's own work."""
        whole = max(1, self._whole)
        shares = {stage: spent / whole for stage, spent in self._ns.items()}
        shares["transform"] = max(0.0, 1.0 - sum(shares.values()))
        return shares


def stage_of(frame: FrameType, event: str, argument: Any) -> str | None:
    """The stage that a call begins, of a function of Python's (`call`) or of another language's (`c_call`); None for most."""
    if event == "c_call":
        owner = getattr(argument, "__self__", None)  # of a function its module
        apart = owner is gc or issubclass(type(owner), io.BytesIO | io.StringIO)  # a file in memory is not read from anywhere
        return None if apart else _of_name(getattr(argument, "__name__", ""))
    code = frame.f_code
    if code is collated.__code__:
        return "collate"
    file = code.co_filename
    if any(one in file for one in READ_FILES):
        return "read"
    if any(one in file for one in DECODE_FILES):
        return "decode"
    return _of_name(code.co_name) if "site-packages" in file or "/lib/python" in file else None


def _of_name(name: str) -> str | None:
    return "read" if name in READS else "decode" if name in DECODES else None
