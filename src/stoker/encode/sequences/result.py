"""What becomes of a table: padded tensors, or packed ones, which are also a store in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stoker.errors import OptionError

if TYPE_CHECKING:
    from stoker.store.store import Store

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
