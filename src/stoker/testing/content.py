"""Content: what is in a batch, bit for bit, whatever it is made of; and which samples a batch has.

Dicts, tuples, lists and dataclasses of tensors, arrays and plain values are understood. A batch is copied, so that a loader
that writes over its buffers is seen through.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import OptionError

SAMPLE, VALID = "sample", "valid"
"""The entries of a batch of stoker that number its samples, and that say which rows are samples at all."""

TellSamples = Callable[[Any], Sequence[Hashable]]
"""Which samples a batch has: one value for each, the same whenever and wherever the sample comes."""


@dataclass(frozen=True)
class Entry:
    """One tensor, array or value of a batch."""

    kind: str
    shape: tuple[int, ...]
    rows: list[bytes]
    """One for each place along the first axis; a single one where there is no axis."""


Content = dict[str, Entry]


def content_of(batch: Any) -> Content:
    """All entries of a batch, by name."""
    content: Content = {}
    _collect(batch, "", content)
    return content


def difference(found: Content, expected: Content) -> str | None:
    """Where two contents differ first, in words; None where they are equal."""
    if found.keys() != expected.keys():
        return f"has the entries {_names(found)}; expected {_names(expected)}"
    for name, entry in expected.items():
        other = found[name]
        if (other.kind, other.shape) != (entry.kind, entry.shape):
            return f"has {name} as {other.kind}{list(other.shape)}; expected {entry.kind}{list(entry.shape)}"
        for row, (one, two) in enumerate(zip(other.rows, entry.rows, strict=True)):
            if one != two:
                return f"differs in {name}" + (f", row {row:,}" if entry.shape else "")
    return None


def samples_of(batch: Any, tell: TellSamples | None) -> list[Hashable]:
    """The samples of a batch: as `tell` says, by the numbers that stoker gives them, or by what is in each row.

    Zeros at the end of a row do not count: they may be padding, which differs from batch to batch.
    """
    if tell is not None:
        return list(tell(batch))
    content = content_of(batch)
    num_rows = _num_rows(content)
    valid = content.pop(VALID, None)
    kept = [row for row in range(num_rows) if valid is None or valid.rows[row] != b"\0"]
    if SAMPLE in content:
        return [int.from_bytes(content[SAMPLE].rows[row], sys.byteorder, signed=True) for row in kept]
    return [tuple(entry.rows[row].rstrip(b"\0") for entry in content.values()) for row in kept]


def _num_rows(content: Content) -> int:
    lengths = {name: entry.shape[0] for name, entry in content.items() if entry.shape}
    if not lengths or len(lengths) < len(content) or len(set(lengths.values())) > 1:
        if SAMPLE in lengths:
            return lengths[SAMPLE]
        shapes = ", ".join(f"{name} {list(entry.shape)}" for name, entry in content.items()) or "nothing"
        raise OptionError(
            f"the samples of a batch cannot be told, as its entries have no common first axis: {shapes}. "
            f"Give samples=, a function from a batch to one value a sample (a feed of stoker: numbers=True)."
        )
    return next(iter(lengths.values()))


def _names(content: Content) -> str:
    return ", ".join(content) or "(none)"


def _collect(value: Any, name: str, content: Content) -> None:
    parts = _parts(value)
    if parts is None:
        content[name or "batch"] = _entry(value, name or "batch")
        return
    for key, part in parts.items():
        _collect(part, f"{name}.{key}" if name else str(key), content)


def _parts(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields: Mapping[Any, Any] = value._asdict()
        return fields
    if isinstance(value, list | tuple) and not _is_list_of_values(value):
        return dict(enumerate(value))
    return None


def _is_list_of_values(value: Sequence[Any]) -> bool:
    return len(value) > 0 and all(part is None or isinstance(part, str | bytes | int | float | complex) for part in value)


def _entry(value: Any, name: str) -> Entry:
    torch = sys.modules.get("torch")  # without torch there is no tensor, and nothing to import it for
    if torch is not None and isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""
        return _of_bytes(str(value.dtype).removeprefix("torch."), tuple(value.shape), data)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            return Entry("object", (len(array),), [repr(one).encode() for one in array])
        return _of_bytes(str(array.dtype), array.shape, array.tobytes())
    if isinstance(value, list | tuple):
        return Entry("list", (len(value),), [repr(one).encode() for one in value])
    if value is None or isinstance(value, str | bytes | int | float | complex):
        return Entry(type(value).__name__, (), [repr(value).encode()])
    raise OptionError(f"a batch has {name} of type {type(value).__name__}; expected tensors, arrays, values, or dicts and lists.")


def _of_bytes(kind: str, shape: tuple[int, ...], data: bytes) -> Entry:
    if not shape:
        return Entry(kind, shape, [data])
    size = len(data) // shape[0] if shape[0] else 0
    return Entry(kind, shape, [data[row * size : (row + 1) * size] for row in range(shape[0])])
