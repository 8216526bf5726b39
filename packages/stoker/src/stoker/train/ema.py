"""The EMA of the weights: updated by one fused operation, swapped in to evaluate.

Guarantee: `update` waits for nothing and changes no address, so it can be part of a CUDA graph. Whatever happens while the average is
applied, the weights and buffers afterwards are those before it, bit for bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor, nn

from stoker._types import converted
from stoker.errors import CheckpointInvalidError, TrainError
from stoker.train.distributed import local


class Ema:
    """The EMA `decay * average + (1 - decay) * weight` of all weights that are trained, beginning with what they are now.

    Frozen weights equal their average, so they are left alone; buffers are the model's own, never averaged. Weights in half
    precision are averaged in float32, as in half precision an average stands still.

    Args:
        model: Whose weights are averaged.
        decay: From 0 and below 1, such as 0.999.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> ema = Ema(model, 0.9)
        >>> with ema.applied():
        ...     _ = model(torch.ones(1, 1))
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay: float = converted("ema", decay, Annotated[float, Meta(ge=0, lt=1)])
        self._model = model
        # Tied weights are one parameter under the first of their names.
        self._weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._frozen = {name: weight for name, weight in model.named_parameters() if not weight.requires_grad}
        self._average = {name: _wide(weight.detach()).clone() for name, weight in self._weights.items()}
        self._groups = list(self._group())
        self._applied = False

    def _group(self) -> Iterator[tuple[list[Tensor], list[Tensor], list[Tensor]]]:
        """Averages, weights and (where a weight is narrower than its average) room for the widened weights."""
        kinds: dict[tuple[torch.device, torch.dtype], list[str]] = {}
        for name, weight in self._weights.items():
            kinds.setdefault((weight.device, weight.dtype), []).append(name)
        for names in kinds.values():
            averages, weights = ([local(tensors[name]) for name in names] for tensors in (self._average, self._weights))
            narrow = averages[0].dtype != weights[0].dtype
            yield averages, weights, [torch.empty_like(average) for average in averages] if narrow else []

    @torch.no_grad()
    def update(self, flag: Tensor | None = None) -> None:
        """Move the average towards the weights of now; where `flag` (a number on the device) is not 0, it stays as it is."""
        if self._applied:
            raise TrainError("the EMA of the weights is applied, so it cannot be updated. Train outside of applied().")
        share = None if flag is None else torch.where(flag == 0, 1.0 - self.decay, 0.0)
        for averages, weights, room in self._groups:
            if room:
                torch._foreach_copy_(room, weights)
            if share is None:
                torch._foreach_lerp_(averages, room or weights, 1.0 - self.decay)
            else:
                # A lerp takes no share that is on the device; these three are as fused as it is.
                moves = torch._foreach_sub(room or weights, averages)
                torch._foreach_mul_(moves, share.to(averages[0].dtype))
                torch._foreach_add_(averages, moves)

    def tensors(self) -> list[Tensor]:
        """The averages themselves: what `update` changes."""
        return list(self._average.values())

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the average as its weights within the block. Needs memory for the weights once more."""
        if self._applied:
            raise TrainError("the EMA of the weights is applied already. Do not nest applied().")
        self._check_frozen()
        weights = list(self._weights.values())
        buffers = list(self._model.buffers())
        with torch.no_grad():
            kept_weights = [weight.detach().clone() for weight in weights]
            kept_buffers = [buffer.detach().clone() for buffer in buffers]
        self._applied = True
        try:
            _copy(weights, list(self._average.values()))
            yield
        finally:
            _copy(weights, kept_weights)
            _copy(buffers, kept_buffers)
            self._applied = False

    def _check_frozen(self) -> None:
        for name, weight in self._frozen.items():
            if weight.requires_grad:
                raise TrainError(f"weight {name!r} was frozen when the average began, and is trained now. Unfreeze it before that.")

    def state_dict(self) -> dict[str, Any]:
        """The decay and the averages by name; the tensors are the average's own, not copies."""
        self._check_frozen()
        return {"decay": self.decay, "average": dict(self._average)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint of the same model; the decay stays that of now."""
        averages: Mapping[str, Tensor] = state.get("average", {})
        odd = sorted(averages.keys() ^ self._average.keys())
        if odd:
            raise CheckpointInvalidError(
                f"the saved average has other weights than the model: {', '.join(odd[:5])}. Resume the same model."
            )
        for name, average in self._average.items():
            if averages[name].shape != average.shape:
                shapes = f"{tuple(averages[name].shape)}, expected {tuple(average.shape)}"
                raise CheckpointInvalidError(f"the saved average of {name!r} has the shape {shapes}. Resume the same model.")
        _copy(list(self._average.values()), [averages[name] for name in self._average])


def _wide(weight: Tensor) -> Tensor:
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight


@torch.no_grad()
def _copy(targets: list[Any], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_([local(target) for target in targets], [local(source) for source in sources])
