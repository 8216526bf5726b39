"""Options of sequences: what the caller said, checked once and for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch

from stoker.encode.sequences.contexts import MAX_NARROW, position_names
from stoker.errors import BadValueError, OptionError

if TYPE_CHECKING:
    from stoker.store.store import Store

Layout = Literal["padded", "packed"]
Compat = Literal["mostlyai"]

DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


@dataclass(frozen=True, kw_only=True)
class Options:
    """How sequences are laid out."""

    max_length: int | None
    layout: Layout
    dtype: str | None
    compat: Compat | None

    def __post_init__(self) -> None:
        length = self.max_length
        if length is not None and not (_is_whole(length) and 1 <= length < MAX_NARROW):
            raise OptionError(f"max_length is {length!r}; expected a whole number from 1 to {MAX_NARROW - 1:,}.")
        if self.layout not in get_args(Layout):
            raise OptionError(f"layout is {self.layout!r}; expected 'padded' or 'packed'.")
        if self.compat not in (None, *get_args(Compat)):
            raise OptionError(f"compat is {self.compat!r}; expected 'mostlyai' or None.")
        if self.compat is not None and (length is None or self.dtype is not None):
            raise OptionError("compat='mostlyai' needs max_length=, and takes no dtype=: its tensors are int64.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise OptionError(f"dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}.")

    @property
    def limit(self) -> int:
        """Rows that a sequence may have."""
        return self.max_length or MAX_NARROW

    @property
    def end_steps(self) -> int:
        """Steps of zeros behind each sequence."""
        return 1 if self.compat else 0

    @property
    def truncates(self) -> bool:
        """Whether floats may lose their fractions."""
        return self.compat is not None

    @property
    def is_packed(self) -> bool:
        """Whether sequences are end to end."""
        return self.layout == "packed"

    @property
    def target(self) -> np.dtype[Any] | None:
        """The type that all columns become; None where they keep theirs."""
        name = "int64" if self.compat else self.dtype
        return None if name is None else np.dtype(name)

    def steps(self, longest: int) -> int:
        """Steps of a padded sequence."""
        return (self.max_length or longest) + self.end_steps


def check_grouping(key: str | None, lengths: object, contexts: object) -> None:
    """Rows have a key or a length."""
    if (key is None) == (lengths is None):
        raise OptionError("rows are grouped by key=, or by lengths= where they lie end to end: pass one of them.")
    if lengths is not None and contexts is not None:
        raise OptionError("contexts are keys, so they need key=; with lengths= sequences have none.")


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


# What becomes of a table: padded tensors, or packed ones, which are also a store in memory.

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Sequences(Mapping[str, torch.Tensor]):
    """A mapping from columns to tensors."""

    tensors: Tensors
    contexts: Any
    """The key of each sequence: a NumPy array (numbers, times), an Arrow array (texts), a tensor; None for `lengths=`."""
    lengths: torch.Tensor
    """Rows of each sequence, without those that were cut off: int32."""
    num_left_out: int
    """Rows whose key is not among the contexts that were asked for."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def num_contexts(self) -> int:
        """Sequences, also those without rows."""
        return len(self.lengths)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {str(one.dtype)[6:]} {list(one.shape)}" for name, one in self.items())
        left_out = f", {self.num_left_out:,} rows left out" if self.num_left_out else ""
        return f"<{type(self).__name__} of {self.num_contexts:,} contexts{left_out}; {columns}>"


class PaddedSequences(_Sequences):
    """Tensors [contexts, steps, 1]; what follows a sequence is zero."""

    @property
    def mask(self) -> torch.Tensor:
        """Which steps are rows of the table: bool [contexts, steps]."""
        steps = next(iter(self.values())).shape[1]
        return torch.arange(steps, dtype=torch.int32, device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PackedSequences(_Sequences):
    """Tensors [steps], all sequences end to end."""

    cu_seqlens: torch.Tensor
    """Where each sequence begins, and the end of the last: int32 [contexts + 1], int64 from 2**31 steps on."""

    def store(self, *, key: str | None = "context") -> Store:
        """A store in memory that shares the tensors, and holds the contexts' keys in the column `key` (None: it does not).

        `stoker.Feed` with `stoker.Sequences` serves it, and its `save` writes it to disk.
        """
        from stoker.encode.sequences.store import store_in_memory

        if key is not None and key in self.tensors:
            raise OptionError(f"the store has a column {key!r} of values already. Give the contexts another name with key=.")
        columns = {name: _numpy(name, one) for name, one in self.items()}
        offsets = self.cu_seqlens.cpu().numpy().astype(np.int64)
        return store_in_memory(columns, offsets, None if key is None or self.contexts is None else (key, self.contexts))


def _numpy(name: str, tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        raise OptionError(f"column {name!r} is bfloat16, which a store in memory cannot hold. Make it float32 first.")
    return tensor.cpu().numpy()


# Tensors as a table: checked where they are, so that a device is never asked to pad what cannot be meant.

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


def _bad(name: str, row: int, value: object, reason: str) -> BadValueError:
    return BadValueError(f"column {name!r} holds {value!r} ({type(value).__name__}) in row {row + 1:,}, {reason}.")


# Sequences where the tensors are: the same ones, bit for bit, by operations of torch on any device.
#
# Values are moved as whole numbers of their size, so that no bit of a float changes and every type can be moved. What is left out
# or cut off goes to a cell behind the last one: it need not be counted, so the host does not wait for the device.

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def pad_tensors(
    table: Mapping[str, Tensor], *, key: str | None, lengths: Any, columns: Sequence[str] | None, contexts: Any, options: Options
) -> PaddedSequences | PackedSequences:
    """What `pad_sequences` does, for tensors of one device."""
    names = check_tensors(table, key, columns)
    values = {name: cast_tensor(name, table[name], options.target, truncate=options.truncates) for name in names}
    types = {name: one.dtype for name, one in values.items()}
    words = {name: one.contiguous().view(_WORDS[one.element_size()]) for name, one in values.items()}
    num_rows, where = len(words[names[0]]), words[names[0]].device
    keys, num_left_out = None, 0
    if key is not None:
        rows, keys = number_rows(*read_keys(key, table[key], contexts))
        rows, order = rows.sort(stable=True)
        words = {name: one[order] for name, one in words.items()}
        counts = torch.bincount(rows + 1, minlength=len(keys) + 1)[1:]
        num_left_out = num_rows - int(counts.sum())
    else:
        counts = read_lengths(lengths, names[0], num_rows, where)
        rows = torch.repeat_interleave(torch.arange(len(counts), device=where), counts, output_size=num_rows)
    cut = counts.clamp(max=options.limit)
    bounds = torch.zeros(len(cut) + 1, dtype=torch.int64, device=where)
    bounds[1:] = (cut + options.end_steps).cumsum(0)
    steps = None if options.is_packed else options.steps(int(cut.max()) if len(cut) else 0)
    begins = bounds[:-1] if steps is None else torch.arange(len(cut), device=where) * steps
    num_cells = int(bounds[-1]) if steps is None else len(cut) * steps
    places = _places(rows, counts, begins, num_left_out, options.limit, num_cells)
    shape = (num_cells,) if steps is None else (len(cut), steps, 1)
    tensors = {name: _put(one, places, num_cells).view(types[name]).view(shape) for name, one in words.items()}
    if options.compat is not None:
        tensors |= positions(cut, begins, steps=steps, max_length=options.limit)
    if steps is not None:
        return PaddedSequences(tensors=tensors, contexts=keys, lengths=cut.int(), num_left_out=num_left_out)
    cu_seqlens = bounds if num_cells > MAX_NARROW else bounds.int()
    return PackedSequences(tensors=tensors, contexts=keys, lengths=cut.int(), num_left_out=num_left_out, cu_seqlens=cu_seqlens)


def number_rows(keys: Tensor, listed: Tensor | None) -> tuple[Tensor, Tensor]:
    """The context of each row, -1 where it is not listed; and the contexts, by default as they first appear."""
    numbers = torch.arange(len(keys), device=keys.device)
    if listed is None:
        distinct, found = torch.unique(keys, return_inverse=True)
        first = torch.full_like(distinct, len(keys), dtype=torch.int64).scatter_reduce_(0, found, numbers, "amin")
        order = first.argsort()
        place = torch.empty_like(order)
        place[order] = numbers[: len(order)]
        return place[found], distinct[order]
    if not len(listed):
        return torch.full_like(numbers, -1), listed
    ordered, order = listed.sort()
    slots = torch.searchsorted(ordered, keys).clamp(max=len(ordered) - 1)
    return torch.where(ordered[slots] == keys, order[slots], -1), listed


def _places(rows: Tensor, counts: Tensor, begins: Tensor, num_left_out: int, limit: int, num_cells: int) -> Tensor:
    """Where each row goes; rows are sorted by their context, those that are left out first."""
    if not len(counts):
        return torch.full_like(rows, num_cells)
    contexts = rows.clamp(min=0)
    firsts = counts.cumsum(0) - counts + num_left_out
    slots = torch.arange(len(rows), device=rows.device) - firsts[contexts]
    return torch.where((rows >= 0) & (slots < limit), begins[contexts] + slots, num_cells)


def _put(values: Tensor, places: Tensor, num_cells: int) -> Tensor:
    target = torch.zeros(num_cells + 1, dtype=values.dtype, device=values.device)
    return target.scatter_(0, places, values)[:num_cells]


def positions(lengths: Tensor, begins: Tensor, *, steps: int | None, max_length: int) -> dict[str, Tensor]:
    """The columns of positions (see `sequences_positions`) of sequences that have one step more than rows."""
    if steps is None:
        contexts = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths + 1)
        step, count = torch.arange(len(contexts), device=lengths.device) - begins[contexts], lengths[contexts]
        numbers = (step, count, count - step)
    else:
        step, count = torch.arange(steps, device=lengths.device)[None, :, None], lengths[:, None, None]
        inside = step <= count
        numbers = (step * inside, count * inside, (count - step) * inside)
    return {
        name: values // divisor % 10 if divisor else values.clone()
        for names, divisor in position_names(max_length)
        for name, values in zip(names, numbers, strict=True)
    }
