"""Distributed training: the ranks of one run, as `torchrun` starts them.

    Ranks       this process among the others, and what they exchange beside gradients
    Replicas    DDP: each rank has all weights, gradients are averaged
    Shards      FSDP2: each rank keeps a shard of weights, gradients and optimizer

Sums in an order that does not depend on the number of ranks are in `ordered_sums`.

Numbers that decide (signals, budgets, states) travel over the host, so no device waits for them.

Guarantee: what decides how a run continues is the same on all ranks at the same step. Only the first rank writes.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from stoker.errors import OptionError, TrainError
from stoker.feed.prefetch import integer_from_environment
from stoker.train.activation_checkpointing import repeated_layers
from stoker.train.state_dict import flatten, shown, unflatten

Kind = Literal["auto", "ordered", "ddp", "fsdp"]
Loss = Callable[[nn.Module, Any], Any]
PIECE_BYTES = 1 << 28
"""What is sent at once."""
_CPU = torch.device("cpu")


class Ranks:
    """This process among the others."""

    def __init__(self, *, rank: int, world_size: int, kind: str, device: torch.device) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device
        """Where this rank computes; unused by a single process."""
        self.together = world_size > 1
        """Whether there are others."""
        self.shards = self.together and kind == "fsdp"
        """Whether each rank keeps a part of the weights."""
        self.is_ordered = self.together and (kind == "ordered" or (kind == "auto" and device.type == "cpu"))
        """Whether gradients are added up in the order of the batches (`ordered_sums`)."""
        self._host: Any = dist.new_group(backend="gloo") if self.together and dist.get_backend() != "gloo" else None

    @classmethod
    def find(cls, kind: Kind, model: nn.Module, device: torch.device | None = None) -> Ranks:
        """Return the ranks of the process group of torch, or of a new one as torchrun says; it ends with the process.

        `device` is by default that of the model. Of GPUs, each rank takes the one of its local rank.
        """
        if not dist.is_available() or not (dist.is_initialized() or (integer_from_environment("WORLD_SIZE") or 1) > 1):
            return cls(rank=0, world_size=1, kind=kind, device=_CPU)
        place = device or next((weight.device for weight in model.parameters()), _CPU)
        if place.type == "cuda":
            if device is None:
                local_rank = integer_from_environment("LOCAL_RANK")
                number = (integer_from_environment("RANK") or 0) if local_rank is None else local_rank
                present = torch.cuda.device_count()
                if number >= present:
                    raise OptionError(
                        f"this is process {number} of its machine, which has {present} GPUs. Start at most one per GPU."
                    )
                place = torch.device("cuda", number)
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

    def mean_each(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace tensors by their means over all ranks, by one message."""
        if tensors:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            self.mean(flat)
            for tensor, part in zip(tensors, flat.split_with_sizes([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    # ---- over the host ----

    def most(self, numbers: list[int]) -> list[int]:
        """The largest of each number over all ranks."""
        if not self.together:
            return numbers
        most = torch.tensor(numbers)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self._host)
        largest: list[int] = most.tolist()
        return largest

    def meet(self) -> None:
        """Wait until all ranks are here."""
        self.most([0])

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """A tensor of one shape, of all ranks."""
        mine = tensor.detach().cpu().contiguous()
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(gathered, mine, group=self._host)
        return [part.to(tensor.device) for part in gathered]

    def collect(self, tree: Any) -> list[Any]:
        """A state of each rank."""
        if not self.together:
            return [tree]
        packed = _packed(tree)
        (size,) = self.most([len(packed)])
        room = torch.zeros(size, dtype=torch.uint8)
        room[: len(packed)] = packed
        return list(map(_unpacked, self.gather(room)))

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
            shared = self.share(None)
            if "error" in shared:
                raise TrainError(f"rank 0 has stopped: {shared['error']}")
            return shared["value"]
        try:
            value = function()
        except BaseException as error:
            self.share({"error": f"{type(error).__name__}: {error}"})
            raise
        self.share({"value": value})
        return value

    def check_same(self, what: str, value: Any) -> None:
        """Refuse, on all ranks, what would let them wait for each other forever."""
        values = self.collect(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise OptionError(
                    f"{what}: {shown(values[0])} on rank 0, but {shown(other)} on rank {rank}; expected the same on all ranks."
                )


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _packed(tree: Any) -> torch.Tensor:
    """A state as bytes: the length of its description, the description, and the tensors end to end."""
    tensors, skeleton = flatten(tree)
    kinds = {name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in tensors.items()}
    text = np.frombuffer(json.dumps([kinds, skeleton]).encode(), np.uint8)
    head = [np.frombuffer(len(text).to_bytes(8, "little"), np.uint8), text]
    values = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors.values()]
    return torch.cat([*(torch.from_numpy(part.copy()) for part in head), *values])


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


class Joint:
    """What a step asks of the ranks. All of them call the same in the same order."""

    def __init__(self, ranks: Ranks, loss: Loss) -> None:
        self.ranks = ranks
        self._loss = loss

    def loss(self, model: nn.Module, batch: Any) -> Any:
        """What the user's loss says."""
        return self._loss(model, batch)

    def join(self, parameters: Sequence[torch.Tensor]) -> None:
        """Let the gradients be those of all ranks."""

    def raise_flag(self, flag: torch.Tensor) -> None:
        """Raise it where it is raised on any rank: where each has the whole gradient, it sees what the others see."""

    def norm(self, norm: torch.Tensor) -> torch.Tensor:
        """The norm of the whole gradient, from that of what is here."""
        return norm


def statistics_of(model: nn.Module) -> list[torch.Tensor]:
    """The running statistics of normalisation layers."""
    return [buffer for layer in model.modules() if isinstance(layer, _NormBase) for buffer in layer.buffers(recurse=False)]


def others_than_statistics(model: nn.Module) -> list[torch.Tensor]:
    """The other buffers. Statistics are joined after each update; what else a model keeps is that of the first rank."""
    statistics = set(map(id, statistics_of(model)))
    return [buffer for buffer in model.buffers() if id(buffer) not in statistics]


# Replicas: each rank has all weights, and gradients become means over the ranks during the backward pass (torch's DDP).
#
# The loss function is called within DDP, so it gets the model itself. Gradients of the first update are reduced by hand:
# then it is known which weights take part, and DDP need not look for the others in each step. So are those of the last, partial
# update of an epoch.
#
# With two ranks no sum depends on how DDP groups gradients, so a resumed run is the same to the last bit. With more, DDP groups
# them again in the second update after each start, and sums may be rounded otherwise.


class Replicas(Joint):
    """The ranks where each has all weights."""

    def __init__(self, ranks: Ranks, model: nn.Module, loss: Loss, *, grad_accum_steps: int) -> None:
        super().__init__(ranks, loss)
        self._objective = _Objective(model, loss)
        self._grad_accum_steps = grad_accum_steps
        self._reducing: DistributedDataParallel | None = None
        self._pending = 0

    def loss(self, model: nn.Module, batch: Any) -> Any:
        """What the user's loss says; its backward pass reduces gradients if it is the last one before an update."""
        self._pending += 1
        batch = with_a_sample(batch)
        if self._reducing is None:
            return self._objective(batch)
        self._reducing.require_backward_grad_sync = self._pending == self._grad_accum_steps
        try:
            return self._reducing(batch)
        except RuntimeError as error:
            if "finished reduction in the prior iteration" not in str(error):
                raise
            raise TrainError(
                "a weight had a gradient in the first update, but not in each one since, so ranks cannot add it up. Let the loss "
                "depend on it each time: add 0 * weight.sum()."
            ) from error

    def join(self, parameters: Sequence[torch.Tensor]) -> None:
        """Reduce what no backward pass has reduced."""
        is_done = self._reducing is not None and self._pending == self._grad_accum_steps
        self._pending = 0
        if is_done:
            return
        used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
        used = torch.tensor(self.ranks.most(used.tolist()))
        gradients = []
        for parameter, is_used in zip(parameters, used.tolist(), strict=True):
            if is_used:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients.append(parameter.grad)
        if not gradients:
            return
        self.ranks.mean_each(gradients)
        if self._reducing is None:
            self._reducing = self._reduce(has_unused=not all(used.tolist()))

    def _reduce(self, *, has_unused: bool) -> DistributedDataParallel:
        reducing = DistributedDataParallel(
            self._objective, find_unused_parameters=has_unused, gradient_as_bucket_view=True, init_sync=False
        )
        reducing.broadcast_buffers = bool(others_than_statistics(self._objective))
        return reducing


class _Objective(nn.Module):
    """The loss as a module: what DDP wraps."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Any:
        return self._loss(self.model, batch)


def with_a_sample(batch: Any) -> Any:
    """The batch; where none of its rows is a sample, as at the end of an epoch, the first one poses as one.

    Its weight in the update is nothing all the same, but a mean over no row would be NaN.
    """
    valid = batch.get("valid") if isinstance(batch, dict) else None
    if not isinstance(valid, torch.Tensor) or valid.dim() != 1 or not len(valid):
        return batch
    poses = valid.clone()
    poses[0] |= ~valid.any()
    return {**batch, "valid": poses}


# Shards: each rank keeps a part of the weights, gradients and optimizer (torch's FSDP2), and layers are whole only while
# they run.
#
# Steps and averages work on the parts; checkpoints hold the whole, so any number of ranks can resume from them.


class Shards(Joint):
    """The ranks where each has a part of the weights. Each backward pass reduces: whole gradients would need the memory that is saved."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        """What the user's loss says."""
        return self._loss(model, with_a_sample(batch))

    def raise_flag(self, flag: torch.Tensor) -> None:
        """Raise it where it is raised on any rank."""
        dist.all_reduce(flag, dist.ReduceOp.MAX)

    def norm(self, norm: torch.Tensor) -> torch.Tensor:
        """The norm of the whole, from that of each part."""
        square = norm.square()
        dist.all_reduce(square)
        return square.sqrt()


def shard(model: nn.Module, optimizer: Any, ranks: Ranks) -> None:
    """Leave this rank its part of the model: repeated layers each, then the rest. The optimizer gets the new parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    meshes = [parameter.device_mesh for parameter in model.parameters() if is_shard(parameter)]  # type: ignore[attr-defined]
    if any(mesh.ndim != 1 or mesh.size() != ranks.world_size for mesh in meshes):
        raise OptionError(
            "the model is sharded, but not over all ranks and nothing else. Leave that to the trainer.", parameter="model"
        )
    if meshes:
        return
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    for layer in [*repeated_layers(model), model]:
        fully_shard(layer, mesh=mesh)
    if not isinstance(optimizer, torch.optim.Optimizer):
        return
    if optimizer.state:
        raise OptionError(
            "the optimizer has been used before, so it cannot be sharded. Give a new one, or resume a checkpoint.",
            parameter="optimizer",
        )
    parameters = dict(model.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [parameters[names[id(weight)]] if id(weight) in names else weight for weight in group["params"]]


def is_shard(tensor: Any) -> bool:
    """Whether a tensor is a part of one, with others on other ranks."""
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "to_local")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part that is here: of a plain tensor, all of it."""
    return tensor.detach().to_local() if is_shard(tensor) else tensor  # type: ignore[attr-defined]


@torch.no_grad()
def whole(tree: Any, *, kept: bool) -> Any:
    """A state with whole tensors on the host, where they are kept. All ranks must call it."""
    if isinstance(tree, Mapping):
        return {name: whole(part, kept=kept) for name, part in tree.items()}
    if not is_shard(tree):
        return tree
    full = tree.full_tensor()
    return full.cpu() if kept else None


@torch.no_grad()
def parts_of(tree: Mapping[Any, Any], like: Mapping[Any, Any]) -> dict[Any, Any]:
    """Of whole tensors the part that is this rank's, where `like` has a part of the same shape under the same name."""
    from torch.distributed.tensor import distribute_tensor

    parts = dict(tree)
    for name, tensor in tree.items():
        part: Any = like.get(name)
        if is_shard(part) and isinstance(tensor, torch.Tensor) and tensor.shape == part.shape:
            parts[name] = distribute_tensor(tensor.to(part.device), part.device_mesh, part.placements, src_data_rank=None)
    return parts
