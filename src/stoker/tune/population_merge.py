"""Merging the models of a population into one module: what is equal, what becomes a tensor per member, and what is padded.

Models of equal shapes differ in their weights, and perhaps in numbers that modules keep as attributes (the `p` of a dropout). Such
numbers become a tensor with one entry per member.

Models of different widths and depths are padded to the largest, with zeros at the end of each dimension:

    Linear, Embedding, parameters    zero rows and columns; their gradients are masked, so they stay zero
    LayerNorm, RMSNorm               mean and variance over the true width of the member
    MultiheadAttention               padded to [heads, head width]; scores are scaled by the true head width
    layers of ModuleList, Sequential a member that lacks a layer has one with zero weights, or passes its input on
    integer attributes               the largest, for reshapes in `forward`

`merge` decides from the modules alone. A `forward` that does something else with a width, such as dividing by it, shows when the merged
module is compared with the unpadded model.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stoker.tune.randomness import SeededAttention

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Merged:
    """One module that computes what each of several models computes, given the tensors and numbers of that model."""

    base: nn.Module
    shapes: dict[str, Shape]
    """Of parameters and buffers, padded."""
    views: list[dict[str, Shape]]
    """For each model the shapes in which its tensors lie in the first corner of the padded ones; absent layers have none."""
    varying: dict[tuple[str, str], list[float]]
    """For each (module, attribute) that differs, the numbers of all models."""
    is_padded: bool
    lacks_layers: bool
    """Whether some models lack layers of the deepest."""


class _PaddedLayerNorm(nn.LayerNorm):
    """Layer norm over the first `true_width` features; the others are zero."""

    true_width: Any

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        is_real = torch.arange(input.shape[-1], device=input.device) < self.true_width
        mean = torch.where(is_real, input, 0.0).sum(-1, keepdim=True) / self.true_width
        centered = torch.where(is_real, input - mean, 0.0)
        variance = centered.square().sum(-1, keepdim=True) / self.true_width
        found = centered * torch.rsqrt(variance + self.eps)
        found = found if self.weight is None else found * self.weight
        return found if self.bias is None else found + self.bias


class _PaddedRMSNorm(nn.RMSNorm):
    """RMS norm over the first `true_width` features; the others are zero."""

    true_width: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_real = torch.arange(x.shape[-1], device=x.device) < self.true_width
        real = torch.where(is_real, x, 0.0)
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        found = real * torch.rsqrt(real.square().sum(-1, keepdim=True) / self.true_width + eps)
        return found if self.weight is None else found * self.weight


_NORMS: dict[type[nn.Module], type[nn.Module]] = {nn.LayerNorm: _PaddedLayerNorm, nn.RMSNorm: _PaddedRMSNorm}


def signature(model: nn.Module, *, with_numbers: bool = False) -> Hashable:
    """What models of one batch have in common: modules, attributes and shapes; `with_numbers` float attributes too."""
    modules = tuple(
        (path, type(module), tuple(sorted((key, repr(value)) for key, value in _attributes(module, with_numbers).items())))
        for path, module in model.named_modules()
    )
    return modules, tuple((name, tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in _tensors(model).items())


def merge(models: Sequence[nn.Module], *, pass_on: bool = False) -> Merged | str:
    """Merge models into one module, padded where their shapes differ.

    Args:
        models: Of all members.
        pass_on: What a layer does that a model lacks. False: its weights are zero, which is right where `forward` adds its output to
            its input, inside the layer or outside. True: its output is its input, which is right for a layer that ends in a norm.

    Returns:
        The merged module, or a sentence that says why these models cannot be merged.
    """
    is_padded = len({signature(model) for model in models}) > 1
    modules = [dict(model.named_modules()) for model in models]
    deepest = max(range(len(models)), key=lambda number: len(modules[number]))
    base = copy.deepcopy(models[deepest])
    for number, own in enumerate(modules):
        if (extra := next((path for path in own if path not in modules[deepest]), None)) is not None:
            return f"model {number} has a module {extra!r} that the model with the most modules does not have"
        if (other := next((path for path in own if type(own[path]) is not type(modules[deepest][path])), None)) is not None:
            return f"module {other!r} is a {type(own[other]).__name__} in model {number} and not in others"
    containers = set()
    for path in modules[deepest]:
        parent = path.rpartition(".")[0]
        lacking = next((number for number, own in enumerate(modules) if path not in own and parent in own), None)
        if lacking is None:
            continue
        if not isinstance(base.get_submodule(parent), nn.ModuleList | nn.Sequential):
            return f"model {lacking} lacks module {path!r}, which is not a layer of a ModuleList or Sequential"
        containers.add(parent)
        if pass_on:
            layer = base.get_submodule(path)
            layer.register_forward_hook(_pass_on)
            layer.__dict__["active"] = 1.0
    # A layer that wide models lack gets their padded inputs all the same: layers of such a container are padded alike.
    alike: dict[str, list[str]] = defaultdict(list)
    for path in modules[deepest]:
        alike[_kind(base, path, containers)].append(path)
    varying: dict[tuple[str, str], list[float]] = {}
    for path, module in list(base.named_modules()):
        siblings = [own[one] for one in alike[_kind(base, path, containers)] for own in modules if one in own]
        if reason := _merge_attributes(path, module, [own.get(path) for own in modules], siblings, varying):
            return reason
        if "active" in module.__dict__:
            varying[path, "active"] = [float(path in own) for own in modules]
    views = [_views(model, is_padded) for model in models]
    shapes: dict[str, Shape] = {}
    for name in _tensors(base):
        path, _, last = name.rpartition(".")
        names = [f"{one}.{last}".lstrip(".") for one in alike[_kind(base, path, containers)]]
        found = [own[one] for own in views for one in names if one in own]
        if len({len(shape) for shape in found}) > 1:
            return f"parameter {name!r} has {len(found[0])} dimensions in one model and {len(found[-1])} in another"
        shapes[name] = tuple(max(sizes) for sizes in zip(*found, strict=True))
    return Merged(base=base, shapes=shapes, views=views, varying=varying, is_padded=is_padded, lacks_layers=bool(containers))


def _kind(base: nn.Module, path: str, containers: set[str]) -> str:
    """The path of a module without the position of its layer, where some members lack layers of that container."""
    for container in containers:
        prefix = f"{container}." if container else ""
        if path != container and path.startswith(prefix):
            position, _, rest = path.removeprefix(prefix).partition(".")
            return f"{prefix}<{type(base.get_submodule(prefix + position)).__name__}>.{rest}"
    return path


def _merge_attributes(
    path: str,
    module: nn.Module,
    present: Sequence[nn.Module | None],
    siblings: Sequence[nn.Module],
    varying: dict[tuple[str, str], list[float]],
) -> str | None:
    """Let numbers that differ vary, and take the largest of integers; a reason where that is impossible."""
    for key, value in _attributes(module, with_numbers=True).items():
        values: list[Any] = [getattr(one, key, None) for one in siblings if key != "salt"]
        if all(one == value for one in values) or key == "active":
            continue
        if any(isinstance(one, float) for one in values) and all(_is_number(one) for one in values):
            varying[path, key] = [float(value if one is None else getattr(one, key)) for one in present]
        elif all(_is_number(one) for one in values):
            module.__dict__[key] = max(values)
        elif key == "normalized_shape" and type(module) in _NORMS and all(len(one) == 1 for one in values):
            widths = [value if one is None else getattr(one, key) for one in present]
            varying[path, "true_width"] = [float(width[0]) for width in widths]
            module.__class__ = _NORMS[type(module)]
            module.__dict__["true_width"] = float(value[0])
        else:
            other = next(one for one in values if one != values[0])
            return f"attribute {key!r} of module {path!r} is {values[0]!r} in one model and {other!r} in another"
    return None


def _pass_on(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """The hook of a layer that some members lack: for them, its output is its input."""
    if not isinstance(output, torch.Tensor) or not args or output.shape != args[0].shape:
        raise ValueError(f"the output of a {type(module).__name__} that some members lack has not the shape of its input")
    active: Any = module.active
    if not isinstance(active, torch.Tensor):
        return output if active else args[0]
    return torch.where(active > 0, output, args[0])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _attributes(module: nn.Module, with_numbers: bool) -> dict[str, Any]:
    """The plain attributes of a module: integers, flags, strings and tuples of them, and floats if asked for."""
    kinds: tuple[type, ...] = (int, str, type(None), tuple, *([float] if with_numbers else []))
    return {key: value for key, value in vars(module).items() if key[0] != "_" and key != "training" and isinstance(value, kinds)}


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _views(model: nn.Module, is_padded: bool) -> dict[str, Shape]:
    """The shape of each tensor of a model; attention is seen as heads, since they are padded one by one."""
    found: dict[str, Shape] = {name: tuple(tensor.shape) for name, tensor in _tensors(model).items()}
    for path, module in model.named_modules() if is_padded else ():
        if isinstance(module, SeededAttention):
            prefix, heads = f"{path}." if path else "", (module.num_heads, module.head_dim)
            wanted = {
                "in_proj_weight": (3, *heads, module.embed_dim),
                "in_proj_bias": (3, *heads),
                "out_proj.weight": (module.embed_dim, *heads),
            }
            found |= {prefix + name: shape for name, shape in wanted.items() if prefix + name in found}
    return found


def corner(shape: Shape) -> tuple[slice, ...]:
    """The index of the first corner of a padded tensor."""
    return tuple(slice(0, size) for size in shape)


def stack(tensors: Sequence[torch.Tensor | None], views: Sequence[Shape | None], shape: Shape) -> torch.Tensor:
    """The tensors of all members, padded with zeros and stacked; a member without the tensor has zeros."""
    given = [one for one in tensors if one is not None]
    if len(given) == len(tensors) and all(tuple(one.shape) == shape for one in given):
        return torch.stack([one.detach() for one in given])
    found = torch.zeros((len(tensors), *shape), dtype=given[0].dtype, device=given[0].device)
    for row, tensor, view in zip(found, tensors, views, strict=True):
        if tensor is not None and view is not None:
            row[corner(view)] = tensor.detach().reshape(view)
    return found


def real_entries(views: Sequence[Shape | None], shape: Shape) -> torch.Tensor:
    """1 where an entry of a stacked tensor belongs to the member, 0 where it is padding."""
    found = torch.zeros((len(views), *shape))
    for row, view in zip(found, views, strict=True):
        if view is not None:
            row[corner(view)] = 1
    return found


def lr_ratio(shape: Shape) -> float:
    """What `torch.optim.Muon` multiplies the learning rate of a matrix by."""
    return math.sqrt(max(1, shape[0] / shape[1]))
