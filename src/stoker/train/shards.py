"""Shards: each rank keeps a part of the weights, gradients and optimizer (torch's FSDP2), and layers are whole only while they run.

Steps and averages work on the parts; checkpoints hold the whole, so any number of ranks can go on from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stoker.errors import OptionError
from stoker.train.loss import LossFunction
from stoker.train.ranks import Ranks
from stoker.train.recompute import repeated_layers
from stoker.train.replicas import with_a_sample


class Shards:
    """What a step asks of the ranks where each has a part of the weights."""

    def __init__(self, ranks: Ranks, loss: LossFunction) -> None:
        self._ranks = ranks
        self._loss = loss

    def loss(self, model: nn.Module, batch: Any) -> Any:
        """What the user's loss says. Each backward pass reduces: whole gradients would need the memory that is saved."""
        return self._loss(model, with_a_sample(batch))

    def join(self, parameters: Sequence[torch.Tensor]) -> None:
        """All backward passes have done it."""

    def mean(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its mean over all ranks."""
        self._ranks.mean(tensor)

    def raise_flag(self, flag: torch.Tensor) -> None:
        """Raise it where it is raised on any rank."""
        dist.all_reduce(flag, dist.ReduceOp.MAX)

    def norm(self, norm: torch.Tensor) -> torch.Tensor:
        """The norm of the whole, from that of each part."""
        square = norm.square()
        dist.all_reduce(square)
        return square.sqrt()

    def most(self, number: int) -> int:
        """The largest number of all ranks."""
        return self._ranks.most([number])[0]


def shard(model: nn.Module, optimizer: Any, ranks: Ranks) -> None:
    """Leave this rank its part of the model: repeated layers each, then the rest. The optimizer gets the new parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    meshes = [one.device_mesh for one in model.parameters() if is_shard(one)]  # type: ignore[attr-defined]
    if any(mesh.ndim != 1 or mesh.size() != ranks.world_size for mesh in meshes):
        raise OptionError("the model is sharded, but not over all ranks and nothing else. Leave that to the trainer.")
    if meshes:
        return
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    for layer in [*repeated_layers(model), model]:
        fully_shard(layer, mesh=mesh)
    if not isinstance(optimizer, torch.optim.Optimizer):
        return
    if optimizer.state:
        raise OptionError("the optimizer has been used before, so it cannot be sharded. Give a new one, or resume a checkpoint.")
    parameters = dict(model.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [parameters[names[id(one)]] if id(one) in names else one for one in group["params"]]


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
    return {name: _part_of(tensor, like.get(name)) for name, tensor in tree.items()}


def _part_of(tensor: Any, like: Any) -> Any:
    if not is_shard(like) or not isinstance(tensor, torch.Tensor) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
