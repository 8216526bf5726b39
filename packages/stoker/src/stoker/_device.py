"""Devices of torch: checked when they are named, and watched for operations that wait for them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stoker.errors import OptionError

if TYPE_CHECKING:
    import torch


def check_device(device: str | torch.device) -> torch.device:
    """Return the torch device, a GPU with its index; raise `OptionError` where this machine does not have it."""
    import torch

    try:
        place = torch.device(device)
        kind = place.type
    except (RuntimeError, TypeError):  # the message of torch lists twenty types of devices
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise OptionError(f"device is {str(device)!r}; expected 'cpu', 'cuda' or 'cuda:N'.", parameter="device")
    if kind == "cuda":
        if not torch.cuda.is_available():
            problem = f"torch {torch.__version__} sees no GPU here. Use device='cpu'"
            raise OptionError(f"device is {str(device)!r}, but {problem}.", parameter="device")
        index = place.index if place.index is not None else torch.cuda.current_device()
        if index >= torch.cuda.device_count():
            raise OptionError(
                f"device is {str(device)!r}, but there are {torch.cuda.device_count()} GPUs here.", parameter="device"
            )
        return torch.device("cuda", index)
    return place


@contextlib.contextmanager
def sync_debug_mode(mode: str, cuda: Any = None) -> Iterator[None]:
    """Let torch warn about operations that wait for the GPU (`"warn"`), or refuse them (`"error"`), within the block.

    The mode applies to the whole process, so it is always restored. The warning of torch that the mode is a prototype is suppressed:
    where warnings are errors, it would leave the mode on.
    """
    if cuda is None:
        import torch

        cuda = torch.cuda
    before = cuda.get_sync_debug_mode()
    try:
        _set_sync_debug_mode(cuda, mode)
        yield
    finally:
        _set_sync_debug_mode(cuda, before)


def _set_sync_debug_mode(cuda: Any, mode: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*debug mode is a prototype")
        cuda.set_sync_debug_mode(mode)
