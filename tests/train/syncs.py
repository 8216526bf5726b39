"""Counts what would make the host wait for a device: seen in the operations themselves, so that a CPU is enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = {
    "aten._local_scalar_dense",
    "aten.item",
    "aten.nonzero",
    "aten.masked_select",
    "aten.equal",
    "aten.is_nonzero",
    "aten._unique2",
    "aten.unique_dim",
    "aten.unique_consecutive",
    "aten.bincount",
    "aten._to_cpu",
    "aten.repeat_interleave",
}


class Syncs(TorchDispatchMode):
    """The operations of the block whose result the host needs, or whose size depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = str(func.overloadpacket)
        indexed = name in ("aten.index", "aten.index_put", "aten.index_put_") and any(
            isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1]
        )
        to_host = name == "aten._to_copy" and dict(kwargs or {}).get("device") is not None
        if name in WAITING or indexed or to_host:
            self.seen.append(name)
        return func(*args, **dict(kwargs or {}))


ASKING = {"item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__float__", "__int__", "__index__", "equal", "is_nonzero"}


class Asked(TorchFunctionMode):
    """The calls of the block by which Python asks for numbers of a tensor, whatever the device's own kernels do."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", None) in ASKING:
            self.seen.append(func.__name__)
        return func(*args, **dict(kwargs or {}))
