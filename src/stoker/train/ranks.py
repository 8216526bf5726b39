"""Ranks: the processes of one training, as `torchrun` starts them, and what they tell each other beside gradients.

Weights are whole on each rank and gradients are added up (`replicas`), or each rank keeps a part of everything (`shards`). Numbers
that decide (signals, budgets, states) travel over the host, so no device waits for them.

The law: whatever decides how a training goes on is the same on all ranks at the same step. Only the first rank writes.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from stoker.errors import OptionError, TrainError
from stoker.train.checkpoints import Checkpoints
from stoker.train.state import flatten, unflatten

Kind = Literal["auto", "ddp", "fsdp"]
PIECE_BYTES = 1 << 28
"""What is sent at once."""
_CPU = torch.device("cpu")


class Ranks:
    """This process and the others; alone, it asks nobody."""

    def __init__(self, *, rank: int, world_size: int, kind: str, device: torch.device) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device
        """Where this rank computes; alone, nobody asks."""
        self.together = world_size > 1
        """Whether there are others."""
        self.shards = self.together and kind == "fsdp"
        """Whether each rank keeps a part of the weights."""
        self._host: Any = dist.new_group(backend="gloo") if self.together and dist.get_backend() != "gloo" else None

    @classmethod
    def find(cls, kind: str, model: nn.Module, device: str | torch.device | None) -> Ranks:
        """Those of the process group there is, or of one that is made as torchrun says; it ends with the process.

        Where the device is not said to its number, a rank takes the GPU that is its turn.
        """
        if kind not in get_args(Kind):
            raise OptionError(f"ranks is {kind!r}; expected one of {', '.join(get_args(Kind))}.")
        if not dist.is_available() or not (dist.is_initialized() or _number("WORLD_SIZE", 1) > 1):
            return cls(rank=0, world_size=1, kind=kind, device=_CPU)
        place = torch.device(device) if device is not None else next((one.device for one in model.parameters()), _CPU)
        if place.type == "cuda":
            place = place if device is not None and place.index is not None else _own_gpu()
            torch.cuda.set_device(place)
        if not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
            atexit.register(_leave)
        return cls(rank=dist.get_rank(), world_size=dist.get_world_size(), kind=kind, device=place)

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that writes and prints."""
        return self.rank == 0

    # ---- on the device ----

    def align(self, model: nn.Module) -> None:
        """Let all ranks begin with the weights and buffers of the first one."""
        tensors = [*model.parameters(), *model.buffers()]
        if not self.together or any(hasattr(tensor, "to_local") for tensor in tensors):  # what is sharded is in order
            return
        self.check_same("the shapes of the model's weights", [list(tensor.shape) for tensor in tensors])
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)

    def mean(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its mean over all ranks."""
        dist.all_reduce(tensor)
        tensor.div_(self.world_size)

    # ---- over the host ----

    def most(self, numbers: list[int]) -> list[int]:
        """The largest of each number over all ranks."""
        if not self.together:
            return numbers
        most = torch.tensor(numbers)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self._host)
        found: list[int] = most.tolist()
        return found

    def meet(self) -> None:
        """Wait until all ranks are here."""
        self.most([0])

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """A tensor of one shape, of all ranks."""
        own = tensor.detach().cpu().contiguous()
        found = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(found, own, group=self._host)
        return [one.to(tensor.device) for one in found]

    def collect(self, tree: Any) -> list[Any]:
        """A state of each rank."""
        if not self.together:
            return [tree]
        own = _packed(tree)
        (size,) = self.most([len(own)])
        room = torch.zeros(size, dtype=torch.uint8)
        room[: len(own)] = own
        return [_unpacked(one) for one in self.gather(room)]

    def share(self, tree: Any) -> Any:
        """The state of the first rank, tensors on the host."""
        if not self.together:
            return tree
        data = _packed(tree) if self.is_first else torch.empty(0, dtype=torch.uint8)
        (size,) = self.most([len(data)])
        if not self.is_first:
            data = torch.empty(size, dtype=torch.uint8)
        for begin in range(0, size, PIECE_BYTES):
            dist.broadcast(data[begin : begin + PIECE_BYTES], src=0, group=self._host)
        return tree if self.is_first else _unpacked(data)

    def first(self, function: Callable[[], Any]) -> Any:
        """What a function returns on the first rank, which alone calls it; where it fails, all ranks do."""
        if not self.together:
            return function()
        if not self.is_first:
            told = self.share(None)
            return told["value"] if "value" in told else _fail(told["error"])
        try:
            value = function()
        except BaseException as error:
            self.share({"error": f"{type(error).__name__}: {error}"})
            raise
        self.share({"value": value})
        return value

    def check_same(self, what: str, value: Any) -> None:
        """Refuse, on all ranks, what would let them wait for each other forever."""
        found = self.collect(value)
        for rank, other in enumerate(found):
            if other != found[0]:
                shown = [repr(one) if len(repr(one)) < 60 else f"{repr(one)[:60]}…" for one in (found[0], other)]
                raise OptionError(f"{what}: {shown[0]} on rank 0, but {shown[1]} on rank {rank}; expected the same on all ranks.")


class Elsewhere(Checkpoints):
    """The checkpoints of a rank that writes none: the first one does."""

    def save(
        self, step: int, parts: Mapping[str, Any], facts: Mapping[str, Any], *, best: bool = False, wait: bool = False
    ) -> None:
        """Nothing is done here."""


def _fail(text: str) -> NoReturn:
    raise TrainError(f"rank 0 has stopped: {text}")


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text.isdecimal() and text:
        raise OptionError(f"the environment variable {name} is {text!r}; expected a whole number.")
    return int(text) if text else default


def _own_gpu() -> torch.device:
    number, present = _number("LOCAL_RANK", _number("RANK", 0)), torch.cuda.device_count()
    if number >= present:
        raise OptionError(f"this is process {number} of its machine, which has {present} GPUs. Start at most one a GPU.")
    return torch.device("cuda", number)


def _packed(tree: Any) -> torch.Tensor:
    """A state as bytes: the length of its description, the description, and the tensors end to end."""
    tensors, skeleton = flatten(tree)
    kinds = {name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in tensors.items()}
    text = np.frombuffer(json.dumps([kinds, skeleton]).encode(), np.uint8)
    head = [np.frombuffer(len(text).to_bytes(8, "little"), np.uint8), text]
    return torch.cat([*(torch.from_numpy(part.copy()) for part in head), *map(_bytes_of, tensors.values())])


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _unpacked(data: torch.Tensor) -> Any:
    size = int.from_bytes(data[:8].numpy().tobytes(), "little")
    kinds, skeleton = json.loads(data[8 : 8 + size].numpy().tobytes())
    tensors, place = {}, 8 + size
    for name, (dtype, shape) in kinds.items():
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        end = place + tensor.numel() * tensor.itemsize
        tensor.reshape(-1).view(torch.uint8).copy_(data[place:end])
        tensors[name], place = tensor, end
    return unflatten(tensors, skeleton)
