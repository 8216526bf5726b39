"""Residency: where the columns of a feed stay while it runs.

device    on the GPU: uploaded once, batches are gathered there
host      in memory: batches are gathered by the CPU and copied ahead of their use
stream    on disk: like host, with hints that read blocks ahead
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from stoker._text import readable_bytes
from stoker.errors import OptionError

if TYPE_CHECKING:
    import torch

Where = Literal["device", "host", "stream"]

DEVICE_SHARE = 0.5
"""Of the free memory of a GPU: the model and its activations need room too."""
HOST_SHARE = 0.7
"""Of the available memory of the machine."""


class Loading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the columns stay, and how batches are prefetched.

    Example:
        >>> Loading(residency="stream", threads=4).prefetch is None
        True
    """

    residency: Literal["auto", "device", "host", "stream"] = "auto"
    """Placement of the columns: on the device, in memory, or on disk."""
    threads: Annotated[int, Meta(ge=0, le=1024)] | None = None
    """Background threads; by default chosen by device and residency. 0 makes batches when they are asked for."""
    prefetch: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Batches that are made before they are asked for; chosen by default."""


@dataclass(frozen=True)
class Residency:
    """Where the columns stay, and the sentence that says why."""

    where: Where
    reason: str


def choose_residency(
    asked: str, num_bytes: int, device: torch.device, *, needs_host: str | None, on_disk: bool, max_fetched: int | None = None
) -> Residency:
    """The residency that was asked for, or the best that fits. Of remote stores, `max_fetched` bytes can be fetched whole."""
    size = readable_bytes(num_bytes)
    if asked != "auto":
        if asked == "device" and needs_host:
            raise OptionError(
                f"residency='device' is not possible, because {needs_host}. Use 'host' or 'auto'.", parameter="residency"
            )
        if asked == "stream" and not on_disk:
            raise OptionError(
                "residency='stream' reads from disk, but this store is in memory. Use 'host' or 'auto'.", parameter="residency"
            )
        return Residency(asked, "as given")  # type: ignore[arg-type]
    if device.type == "cuda" and not needs_host:
        free = free_device_bytes(device)
        share = f"{DEVICE_SHARE:.0%} of the free GPU memory ({readable_bytes(free)})"
        if num_bytes <= min(DEVICE_SHARE * free, num_bytes if max_fetched is None else max_fetched):
            return Residency("device", f"the columns ({size}) fit {share}")
        why = f"the columns ({size}) exceed {share}"
    else:
        why = needs_host or f"batches are for the {device.type}"
    if max_fetched is not None:
        return Residency("stream", f"{why}, and blocks are fetched when they are needed")
    if not on_disk:
        return Residency("host", f"{why}, and the columns ({size}) are in memory already")
    available = available_host_bytes()
    share = f"{HOST_SHARE:.0%} of the available memory ({readable_bytes(available)})"
    if num_bytes <= HOST_SHARE * available:
        return Residency("host", f"{why}, and the columns ({size}) fit {share}")
    return Residency("stream", f"{why}, and the columns ({size}) exceed {share}")


def free_device_bytes(device: torch.device) -> int:
    """What a GPU has left, counting what torch holds but does not use."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def available_host_bytes() -> int:
    """What this process may still take, with regard to the limit of its control group."""
    import psutil

    available = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), (group / "memory.current").read_text().strip()
        return min(available, max(0, int(limit) - int(used)))
    except (OSError, ValueError):  # no such group, or no limit ("max")
        return available
