"""Planning of a population: which members can train in one step. Each plan is tried on one batch and compared.

1. one model alone: its errors are the user's, and its loss must be a scalar
2. all models merged into one; a few members are compared with their own models: loss, gradients and buffers
3. where that fails or differs: members of equal shapes, then of equal attributes, then one by one
"""

from __future__ import annotations

import copy
import difflib
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stoker.errors import OptionError
from stoker.train.autotune import reason_of
from stoker.tune import population_optimizers as optimizers
from stoker.tune.population_group import LossOfModel, MemberGroup
from stoker.tune.population_merge import merge, signature

MOST_COMPARED = 8
"""Members of a group that are compared with their own models; each costs a step alone."""

_SLOW_OPERATION = re.compile(r"batching rule for (\S+?)\.? ")


class RecordedConfig(dict[str, Any]):
    """A dict that remembers which of its keys were read."""

    def __init__(self, given: Mapping[str, Any], read_keys: set[str]) -> None:
        super().__init__(given)
        self._read_keys = read_keys

    def __getitem__(self, key: str) -> Any:
        self._read_keys.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        self._read_keys.add(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        self._read_keys.update(self.keys())
        return super().__iter__()


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models of all members before training, with all that groups are made of."""

    models: list[nn.Module]
    configs: Sequence[Mapping[str, Any]]
    seeds: Sequence[int]
    optimizer: str
    loss: tuple[Callable[..., Any], int]
    device: torch.device
    chunk_size: int | None
    compile: bool
    read_keys: set[str]

    def for_loss(self, member: int) -> dict[str, Any]:
        """The entries of a configuration that the optimizer does not take."""
        return {key: value for key, value in self.configs[member].items() if not optimizers.is_setting(key) and key != "seed"}

    def hyper(self, members: Sequence[int]) -> dict[str, Any]:
        """What the loss is given: floats as tensors [K], and so integers that differ; other values as they are."""
        given = [self.for_loss(member) for member in members]
        dtype = next((one.dtype for one in self.models[members[0]].parameters()), torch.get_default_dtype())
        found: dict[str, Any] = {}
        for key, value in given[0].items():
            values = [one.get(key) for one in given]
            if not all(_is_number(one) for one in values):
                found[key] = value
            elif any(isinstance(one, float) for one in values):
                found[key] = torch.tensor(values, dtype=dtype, device=self.device)
            else:
                found[key] = value if len(set(values)) == 1 else torch.tensor(values, device=self.device)
        return found

    def split(self, members: Sequence[int], *, with_numbers: bool) -> list[list[int]]:
        """Members of equal shapes together, and of equal float attributes if asked for."""
        found: dict[Hashable, list[int]] = defaultdict(list)
        for member in members:
            found[signature(self.models[member], with_numbers=with_numbers), self._constants(member)].append(member)
        return list(found.values())

    def _constants(self, member: int) -> Hashable:
        """The entries for the loss that cannot be tensors, and the names of the others."""
        return tuple(sorted((key, "" if _is_number(value) else repr(value)) for key, value in self.for_loss(member).items()))

    def step_alone(self, member: int, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Loss, flattened gradients, and buffers afterwards, of one model as a plain training loop has them."""
        trial = LossOfModel(copy.deepcopy(self.models[member]), *self.loss, seed=self.seeds[member]).to(self.device).train()
        hyper = {name: one[0] if isinstance(one, torch.Tensor) else one for name, one in self.hyper([member]).items()}
        loss = trial(batch, RecordedConfig(hyper, self.read_keys))
        parameters = {name: one for name, one in trial.model.named_parameters() if one.requires_grad}
        if not parameters:
            raise OptionError("make_model returned a model without trainable parameters.")
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        gradients = {
            name: (torch.zeros_like(parameters[name]) if one is None else one).flatten()
            for name, one in zip(parameters, found, strict=True)
        }
        return loss.detach(), gradients, dict(trial.model.named_buffers())


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A group, why it is not one with all members (None where it is), and what is to be known about it."""

    group: MemberGroup
    reason: str | None
    notes: tuple[str, ...]


def make_group(models: Models, members: Sequence[int], *, is_batched: bool, pass_on: bool = False) -> MemberGroup | str:
    """A group of these members, or the reason why their models cannot be merged."""
    merged = merge([models.models[member] for member in members], pass_on=pass_on)
    if isinstance(merged, str):
        return merged
    return MemberGroup(
        merged,
        [models.models[member] for member in members],
        members=members,
        configs=[models.configs[member] for member in members],
        hyper=models.hyper(members),
        seeds=[models.seeds[member] for member in members],
        optimizer=models.optimizer,
        loss=models.loss,
        device=models.device,
        is_batched=is_batched and len(members) > 1,
        chunk_size=models.chunk_size,
        pass_on=pass_on,
        compile=models.compile,
    )


def plan_groups(models: Models, batch: Any, *, masking: bool) -> list[Planned]:
    """Groups of all members, as large as possible.

    Args:
        models: All members.
        batch: On their device.
        masking: Whether models of different sizes may be padded.

    Raises:
        OptionError: The loss does not return a scalar, or an entry of a configuration is probably misspelt.
    """
    notes = _probe_alone(models, batch)
    everyone = list(range(len(models.models)))
    by_shape = models.split(everyone, with_numbers=False)
    has_one_shape = len(by_shape) == 1
    todo: list[tuple[list[int], str | None]] = [(everyone, None)]
    if not has_one_shape and not (masking and _differ_in_models_only(models, everyone)):
        why = "the shapes differ, and masking=False" if not masking else "a string or flag for the loss differs"
        todo = [(members, why) for members in by_shape]
    planned = []
    while todo:
        members, reason = todo.pop(0)
        group = _try_batch(models, members, batch, compare=_GLOBAL_RANDOM not in notes)
        if not isinstance(group, str):
            slow = f"one member at a time within the step: {', '.join(group.slow_operations)}"
            planned.append(Planned(group=group, reason=reason, notes=(*notes, *([slow] if group.slow_operations else []))))
            continue
        parts = models.split(members, with_numbers=False)
        if len(parts) == 1:
            parts = models.split(members, with_numbers=True)
        if len(parts) > 1:
            todo += [(part, group) for part in parts]
            continue
        alone = make_group(models, members, is_batched=False)
        assert not isinstance(alone, str)  # members of one shape can always be merged
        planned.append(Planned(group=alone, reason=group, notes=notes))
    return planned


def _differ_in_models_only(models: Models, members: Sequence[int]) -> bool:
    return len({models._constants(member) for member in members}) == 1


def _probe_alone(models: Models, batch: Any) -> tuple[str, ...]:
    """Run the first model alone, twice with different states of torch's generator; what is to be known about all members."""
    devices = [models.device] if models.device.type == "cuda" else []
    losses = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            losses.append(models.step_alone(0, batch)[0])
    known = {key for member in range(len(models.configs)) for key in models.for_loss(member)}
    for key in sorted(known - models.read_keys):
        if near := difflib.get_close_matches(key, [one for one in optimizers.SETTINGS if one != key], 1, cutoff=0.75):
            raise OptionError(f"configs has {key!r}, which neither the optimizer, make_model nor loss reads; is it {near[0]!r}?")
    notes = []
    if unread := sorted(known - models.read_keys):
        notes.append(f"read by neither make_model nor loss: {', '.join(unread)}")
    if not torch.equal(losses[0], losses[1]) and not (losses[0].isnan() and losses[1].isnan()):
        notes.append(_GLOBAL_RANDOM)
    return tuple(notes)


_GLOBAL_RANDOM = (
    "the loss draws from torch's generator: members draw different numbers, but not those that each would draw alone "
    "(use nn.Dropout, or the random argument of the loss)"
)


def _try_batch(models: Models, members: Sequence[int], batch: Any, *, compare: bool) -> MemberGroup | str:
    """A group that trains in one step, or the reason why there is none."""
    group = make_group(models, members, is_batched=True)
    if isinstance(group, str) or len(members) == 1:
        return group
    reason = _find_reason(models, group, batch, compare=compare)
    if reason is not None and models.device.type == "cuda":  # kernels have no second derivative, and Triton needs a C compiler
        group.fuses = False
        reason = _find_reason(models, group, batch, compare=compare)
    if reason is not None and group.lacks_layers:
        other = make_group(models, members, is_batched=True, pass_on=True)
        if not isinstance(other, str) and _find_reason(models, other, batch, compare=compare) is None:
            return other
    return group if reason is None else reason


def _find_reason(models: Models, group: MemberGroup, batch: Any, *, compare: bool) -> str | None:
    """Do a step of the group without its update; why it cannot be done, or differs from steps of single models."""
    restore = group.clone_buffers()
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            gradients, losses = group.batched_gradients(batch)
        found = (match[1] for one in seen if (match := _SLOW_OPERATION.search(str(one.message))))
        group.slow_operations = tuple(sorted(set(found)))
        return _find_difference(models, group, batch, gradients, losses) if compare else None
    except Exception as error:  # whatever torch.func or a forward cannot do with members at once
        return _plain(error)
    finally:
        restore()


def _find_difference(
    models: Models, group: MemberGroup, batch: Any, gradients: Mapping[str, torch.Tensor], losses: torch.Tensor
) -> str | None:
    """Where the step of a group differs from that of single models by more than rounding."""
    is_exact = torch.get_float32_matmul_precision() == "highest" and losses.dtype in (torch.float32, torch.float64)
    tolerance = 1e-4 if is_exact else 2e-2
    for row in _representatives(models, group.members):
        loss, own, buffers = models.step_alone(group.members[row], batch)
        if not _is_close(losses[row], loss, tolerance):
            return f"batched, the loss of member {group.members[row]} is {losses[row]:.6g}, alone it is {loss:.6g}"
        found = group.member_gradients(gradients, row)
        largest = max(float(one.abs().max()) for one in own.values() if one.numel())
        for name, one in own.items():
            if not _is_close(found[name], one, 10 * tolerance, scale=largest):
                return f"batched, the gradient of {name!r} of member {group.members[row]} differs from that alone"
        for name, one in buffers.items():
            # Of dropout: a member with p=0 draws nothing alone, and in a batch with others it draws what it does not use.
            if not name.endswith("counter") and not _is_close(group.member_buffer(name, row), one.flatten(), 10 * tolerance):
                return f"batched, the buffer {name!r} of member {group.members[row]} differs from that alone"
    return None


def _representatives(models: Models, members: Sequence[int]) -> list[int]:
    """Rows to compare: one of each shape, the last, and others in between."""
    shapes: dict[Hashable, int] = {}
    for row, member in enumerate(members):
        shapes.setdefault(signature(models.models[member]), row)
    spread = [round(number * (len(members) - 1) / (MOST_COMPARED - 1)) for number in range(MOST_COMPARED)]
    return list(dict.fromkeys([*shapes.values(), len(members) - 1, *spread]))[:MOST_COMPARED]


def _is_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float, scale: float | None = None) -> bool:
    found, expected = found.double(), expected.double()
    scale = max(1.0, float(expected.abs().max())) if scale is None else scale
    return torch.allclose(found, expected, rtol=0, atol=tolerance * scale, equal_nan=True)


def _plain(error: BaseException) -> str:
    """The reason in words of the user for what torch.func reports most often."""
    text = str(error)
    for sign, words in _REASONS.items():
        if sign in text:
            return f"{words} ({reason_of(error).rpartition('(')[2].rstrip(')')})" if "(" in reason_of(error) else words
    return reason_of(error)


_REASONS = {
    "calling .item()": "the model or loss needs a value in Python (.item(), or if on a tensor)",
    "dynamic shape": "the model or loss has a shape that depends on values (such as a boolean mask)",
    "inplace": "the model or loss writes into a tensor that all members share",
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
