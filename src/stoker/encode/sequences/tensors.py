"""Tensors as a table: checked where they are, so that a device is never asked to pad what cannot be meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stoker.errors import BadValue, OptionError

Tensor = torch.Tensor


def check_tensors(table: Mapping[str, Tensor], key: str | None, columns: Sequence[str] | None) -> list[str]:
    """The names of the columns of values. All are on one device, of one axis, and equally long."""
    names = [name for name in table if name != key] if columns is None else list(columns)
    used = [*([] if key is None else [key]), *names]
    for name in used:
        if name not in table:
            raise OptionError(f"the table has no column {name!r}; it has {', '.join(table)}.")
    if not names:
        raise OptionError(f"no column is left to pad beside {key!r}. Name some with columns=.")
    first = table[used[0]]
    for name in used:
        one = table[name]
        if _where(one) != _where(first):
            raise OptionError(f"column {name!r} is {_where(one)}, but {used[0]!r} is {_where(first)}. Bring all to one device.")
        if one.dim() != 1 or one.is_complex():
            raise OptionError(f"column {name!r} is {one.dtype} of shape {tuple(one.shape)}; expected one number a row.")
        if len(one) != len(first):
            raise OptionError(f"column {name!r} has {len(one):,} rows, but {used[0]!r} has {len(first):,}.")
    return names


def _where(column: object) -> str:
    return f"on {column.device}" if isinstance(column, torch.Tensor) else f"a {type(column).__name__} and no tensor"


def read_keys(key: str, keys: Tensor, contexts: Any) -> tuple[Tensor, Tensor | None]:
    """Keys and listed contexts as int64."""
    listed = None if contexts is None else torch.as_tensor(contexts, device=keys.device)
    for name, one in ((key, keys), ("contexts", listed)):
        if one is not None and (one.is_floating_point() or one.dtype == torch.uint64 or one.dim() != 1):
            raise OptionError(f"column {name!r} is {one.dtype} of shape {tuple(one.shape)}; keys on a device are whole numbers.")
    if listed is None:
        return keys.long(), None
    ordered, order = listed.long().sort(stable=True)
    repeats = (ordered[1:] == ordered[:-1]).nonzero()
    if len(repeats):
        first, second = order[int(repeats[0]) : int(repeats[0]) + 2].tolist()
        raise _bad("contexts", second, int(listed[second]), f"as in row {first + 1:,}. List each context once")
    return keys.long(), listed.long()


def read_lengths(given: Any, name: str, num_rows: int, device: torch.device) -> Tensor:
    """Lengths as int64; together they are all rows."""
    lengths = torch.as_tensor(given, device=device)
    if lengths.dim() != 1 or lengths.is_floating_point():
        raise OptionError(f"lengths is {lengths.dtype} of shape {tuple(lengths.shape)}; expected whole numbers, one a sequence.")
    lengths = lengths.long()
    if len(lengths) and int(lengths.min()) < 0:
        row = int(lengths.argmin())
        raise _bad("lengths", row, int(lengths[row]), "but a sequence has no fewer than 0 rows")
    if int(lengths.sum()) != num_rows:
        raise OptionError(f"lengths sum up to {int(lengths.sum()):,}, but column {name!r} has {num_rows:,} rows.")
    return lengths


def cast_tensor(name: str, values: Tensor, dtype: np.dtype[Any] | None, *, truncate: bool) -> Tensor:
    """Values in another type, each exactly; `truncate` lets floats lose their fractions."""
    target: torch.dtype = values.dtype if dtype is None else getattr(torch, dtype.name)
    if values.dtype == target:
        return values
    if torch.uint64 in (values.dtype, target):
        raise OptionError(f"column {name!r} cannot go from {values.dtype} to {target} on a device. Convert it before.")
    if values.dtype in (torch.uint16, torch.uint32):
        values = values.long()
    result = values.to(target)
    bad = _differs(values, result, truncate)
    if bool(bad.any()):
        row = int(bad.int().argmax())
        raise _bad(name, row, values[row].item(), f"which {str(target)[6:]} cannot hold. Choose another dtype, or fix the row")
    return result


def _differs(values: Tensor, result: Tensor, truncate: bool) -> Tensor:
    """Which numbers are not the same after a cast; floats may round to narrower floats, but not overflow."""
    if result.dtype == torch.bool:
        return (values != 0) & (values != 1)
    if values.is_floating_point() and result.is_floating_point():
        return values.isfinite() & ~result.isfinite()
    if values.is_floating_point():
        whole = values.double().trunc()
        outside = ~_fits(whole, result.dtype)
        return outside if truncate else outside | (whole != values)
    if result.is_floating_point():
        return ~_fits(result.double(), torch.int64) | (result.double().long() != values)
    whole_result = result.long()
    return whole_result != values.long()


def _fits(whole: Tensor, dtype: torch.dtype) -> Tensor:
    bounds = torch.iinfo(dtype)
    return (whole >= float(bounds.min)) & (whole < float(bounds.max) + (0.0 if bounds.bits > 53 else 1.0))


def _bad(name: str, row: int, value: object, reason: str) -> BadValue:
    return BadValue(f"column {name!r} holds {value!r} ({type(value).__name__}) in row {row + 1:,}, {reason}.")
