"""Devices, as people name them: what torch would refuse with a traceback is refused in one line.

Ground of feeds, trainings and recipes. torch is imported on use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.errors import OptionError

if TYPE_CHECKING:
    import torch


def check_device(device: str | torch.device) -> torch.device:
    """The device that is meant, a GPU with its number; refused where this machine has none such."""
    import torch

    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"device is {device!r}; expected 'cpu', 'cuda' or 'cuda:N' ({str(error).splitlines()[0]}).") from None
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise OptionError(f"device is {device!r}, but torch {torch.__version__} sees no GPU here. Use device='cpu'.")
        index = found.index if found.index is not None else torch.cuda.current_device()
        if index >= torch.cuda.device_count():
            raise OptionError(f"device is {device!r}, but there are {torch.cuda.device_count()} GPUs here.")
        return torch.device("cuda", index)
    return found
