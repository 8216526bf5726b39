"""Layout: where each tensor of a part lies in its safetensors file, before a byte of it is written.

The law: wide elements come first, so that every tensor is aligned to its own element and any reader of the format can map
it. Within one width the tensors of one device stand together: they come from there in one copy, a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
import torch
from torch import Tensor

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The types that every version of the format has; a state brings others in as integers of the same width."""

CARRIERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""Copies are made as integers: bits are bits, and every device can copy them."""

_ALIGNMENT = 8

Signature = tuple[tuple[str, torch.dtype, torch.Size, torch.device], ...]


@dataclass(frozen=True, kw_only=True)
class Place:
    """One tensor's range among the values of its file."""

    name: str
    shape: torch.Size
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """Places of one width that are filled from one device, end to end."""

    device: torch.device
    carrier: torch.dtype
    places: tuple[Place, ...]

    @property
    def begin(self) -> int:
        """Where the first place begins."""
        return self.places[0].begin

    @property
    def end(self) -> int:
        """Where the last place ends."""
        return self.places[-1].end


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All of one file: its header, and the runs behind it."""

    header: bytes
    runs: tuple[Run, ...]
    num_bytes: int
    """Of the values, without the header."""


def signature(tensors: Mapping[str, Tensor]) -> Signature:
    """All that a layout depends on: equal signatures, equal layouts."""
    return tuple((name, tensor.dtype, tensor.shape, tensor.device) for name, tensor in tensors.items())


def lay_out(entries: Signature) -> Layout:
    """Place tensors of types that the format has."""
    ordered = sorted(entries, key=lambda entry: (-entry[1].itemsize, str(entry[3]), entry[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    runs = []
    end = 0
    for (width, _), members in groupby(ordered, key=lambda entry: (entry[1].itemsize, str(entry[3]))):
        places: list[Place] = []
        here = list(members)
        for name, dtype, shape, _ in here:
            begin, end = end, end + shape.numel() * width
            places.append(Place(name=name, shape=shape, begin=begin, end=end))
            header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        runs.append(Run(device=here[0][3], carrier=CARRIERS[width], places=tuple(places)))
    text = msgspec.json.encode(header)
    text = text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    return Layout(header=len(text).to_bytes(8, "little") + text, runs=tuple(runs), num_bytes=end)
