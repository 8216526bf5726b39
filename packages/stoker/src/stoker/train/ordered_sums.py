"""Ordered sums: the gradient of an update, added up batch by batch in the order of the batches, on any number of ranks.

DDP adds up the gradients of a rank first and those of the ranks after that, so the rounding depends on the number of ranks. Here each
batch counts by itself, and a sum begins with the first batch of the update, as if one process had done them all:

    1. After the backward pass of a batch, each rank cuts its gradient into one piece per rank, and sends piece r to rank r.
    2. Rank r adds the pieces that it got to its sums, those of rank 0 first. Ranks without a sample are left out.
    3. When the update has all its batches, every rank gets the sums of all pieces.

Step 1 moves as many bytes as half of a ring all-reduce, and so does step 3. With one batch per rank and update that is what DDP moves;
with k batches it is (k + 1) / 2 times as much, and nothing of it overlaps the backward pass.

Guarantee: the sums have the bits of one process that does all batches of the update in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from stoker.train.distributed import Joint, Loss, Ranks, others_than_statistics

ALIGNMENT = 8
"""Bytes at a multiple of which a part of a message begins, so that it can be read as any type."""


class OrderedSums(Joint):
    """The ranks where each has all weights, and sums have one order. The loss of a batch without a sample may be NaN: it does not count."""

    def __init__(self, ranks: Ranks, model: nn.Module, loss: Loss) -> None:
        super().__init__(ranks, loss)
        self._buffers = others_than_statistics(model)
        self._versions = [buffer._version for buffer in self._buffers]
        self._groups: list[_Group] = []
        self._used: torch.Tensor | None = None
        self._are_buffers_old = False

    def add(self, parameters: Sequence[torch.Tensor], numbers: torch.Tensor) -> list[torch.Tensor]:
        """Add the gradients that a batch has left to the sums, and take them from the parameters.

        Args:
            parameters: All of the optimizer's.
            numbers: Of this batch; the first one is its weight, and 0 where it has no sample.

        Returns:
            The numbers of all ranks that have samples, rank 0 first.
        """
        if not self._groups:
            self._groups = _group(parameters, self.ranks.world_size)
        versions = [buffer._version for buffer in self._buffers]
        changed, self._versions = versions != self._versions, versions
        flags = [*(parameter.grad is not None for parameter in parameters), changed]
        tail = torch.cat([numbers, torch.tensor(flags, dtype=numbers.dtype, device=numbers.device)])
        parts = [group.pieces(parameters) for group in self._groups] + [tail.expand(self.ranks.world_size, -1)]
        got = _exchange(parts, self.ranks.world_size)
        tails = got.pop()
        with_samples = [rank for rank, weight in enumerate(tails[:, 0].tolist()) if weight > 0]
        for group, pieces in zip(self._groups, got, strict=True):
            for rank in with_samples:
                group.total = pieces[rank].clone() if group.total is None else group.total.add_(pieces[rank])
        used = tails[:, len(numbers) : -1].amax(0)
        self._used = used if self._used is None else torch.maximum(self._used, used)
        self._are_buffers_old |= bool(tails[0, -1])
        for parameter in parameters:
            parameter.grad = None
        return [tails[rank, : len(numbers)] for rank in with_samples]

    def join(self, parameters: Sequence[torch.Tensor]) -> None:
        """Give the sums to the parameters, on all ranks."""
        if self._used is None:
            return
        used = self._used.bool().tolist()
        for group in self._groups:
            if group.total is None:
                continue
            whole = torch.empty(self.ranks.world_size * len(group.total), dtype=group.dtype, device=group.total.device)
            dist.all_gather(list(whole.chunk(self.ranks.world_size)), group.total)
            places = whole[: sum(group.sizes)].split_with_sizes(group.sizes)
            for place, number in zip(places, group.members, strict=True):
                if used[number]:
                    parameters[number].grad = place.view(parameters[number].shape)
            group.total = None
        if self._are_buffers_old:
            for buffer in self._buffers:
                dist.broadcast(buffer.detach(), src=0)
            self._versions = [buffer._version for buffer in self._buffers]
        self._used, self._are_buffers_old = None, False


class _Group:
    """The parameters of one type, end to end, and the sum of this rank's piece of their gradients."""

    def __init__(self, dtype: torch.dtype, members: list[int], sizes: list[int], world_size: int) -> None:
        self.dtype, self.members, self.sizes = dtype, members, sizes
        self._world_size = world_size
        self._padding = -sum(sizes) % world_size
        self.total: torch.Tensor | None = None

    def pieces(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """The gradients as one row per rank; zeros where a parameter took no part."""
        flat = [
            torch.zeros_like(parameter).reshape(-1) if parameter.grad is None else parameter.grad.reshape(-1)
            for parameter in (parameters[number] for number in self.members)
        ]
        if self._padding:
            flat.append(flat[0].new_zeros(self._padding))
        return torch.cat(flat).view(self._world_size, -1)


def _group(parameters: Sequence[torch.Tensor], world_size: int) -> list[_Group]:
    """Parameters by type and device: gradients are added up in their own type, as autograd does."""
    kinds: dict[torch.dtype, list[int]] = {}
    for number, parameter in enumerate(parameters):
        kinds.setdefault(parameter.dtype, []).append(number)
    return [
        _Group(dtype, members, [parameters[number].numel() for number in members], world_size) for dtype, members in kinds.items()
    ]


@torch.no_grad()
def _exchange(parts: Sequence[torch.Tensor], world_size: int) -> list[torch.Tensor]:
    """Send row r of each part to rank r, in one message; returns the same parts with row r as rank r sent it."""
    sizes = [part.shape[1] * part.itemsize for part in parts]
    room = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    message = torch.empty(world_size, sum(room), dtype=torch.uint8, device=parts[0].device)
    starts = [sum(room[:number]) for number in range(len(parts))]
    for part, start, size in zip(parts, starts, sizes, strict=True):
        message[:, start : start + size] = part.contiguous().view(torch.uint8)
    got = torch.empty_like(message)
    dist.all_to_all_single(got, message)
    return [got[:, start : start + size].view(part.dtype) for part, start, size in zip(parts, starts, sizes, strict=True)]
