"""A group of members that train in one step: their weights as one matrix, and the loss of all of them as one function.

gradients   `vmap(grad)` of the loss over the members, or a loop over them where `vmap` cannot do it
update      the optimizer on the matrix of weights, each row with its own settings
graph       on a GPU, both as one CUDA graph
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from stoker.errors import OptionError
from stoker.train.graph import Graphs
from stoker.train.step import EagerStep, Readout
from stoker.tune import population_optimizers as optimizers
from stoker.tune.population_layers import BatchedKernels
from stoker.tune.population_merge import Merged, corner, lr_ratio, real_entries, stack
from stoker.tune.randomness import MemberRandom

_ALIGNMENT = 8
"""Parameters begin at a multiple of this many numbers: matmuls read aligned rows."""

Tensors = dict[str, torch.Tensor]


class LossOfModel(nn.Module):
    """A model with its loss, as one module, so that `functional_call` can give both the tensors of any member."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any], num_arguments: int, seed: int = 0) -> None:
        super().__init__()
        self.model = model
        self.random = MemberRandom(seed)
        self.__dict__["loss"] = loss  # a loss that is a module has no part in the members
        self._num_arguments = num_arguments

    def forward(self, batch: Any, hyper: Mapping[str, Any], function: Callable[..., Any] | None = None) -> torch.Tensor:
        """The loss, or the scalar of another function with the same arguments."""
        given = (self.model, batch, hyper, self.random)[: self._num_arguments]
        found = (function or self.__dict__["loss"])(*given)
        if not isinstance(found, torch.Tensor) or found.dim() != 0:
            what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else repr(found)
            raise OptionError(f"loss returned {what}; expected a scalar tensor. Reduce it, for example by .mean().")
        return found


class MemberGroup:
    """Members that train together. All their tensors have the member as first dimension.

    Args:
        merged: Their models as one.
        models: Their models, for the first weights.
        members: Their positions in the population.
        configs: Their configurations.
        hyper: What the loss is given: tensors [K], and values that are equal in all.
        seeds: Of their random numbers.
        optimizer: The name of the optimizer.
        loss: The user's function and its number of arguments.
        device: Where to train.
        is_batched: Whether all members are one `vmap`; otherwise they take turns.
        chunk_size: How many members `vmap` handles at once; None for all.
        pass_on: As of `merge`.
        compile: Whether gradients and update are compiled, each by itself: together their inputs would overlap in memory.
    """

    def __init__(
        self,
        merged: Merged,
        models: Sequence[nn.Module],
        *,
        members: Sequence[int],
        configs: Sequence[Mapping[str, Any]],
        hyper: Mapping[str, Any],
        seeds: Sequence[int],
        optimizer: str,
        loss: tuple[Callable[..., Any], int],
        device: torch.device,
        is_batched: bool,
        chunk_size: int | None,
        pass_on: bool,
        compile: bool = False,
    ) -> None:
        self.members = list(members)
        self.is_batched = is_batched
        self.is_padded = merged.is_padded
        self.lacks_layers = merged.lacks_layers
        self.pass_on = pass_on
        self.slow_operations: tuple[str, ...] = ()
        """Operations that torch loops over, with a warning in each step."""
        self.fuses = True
        """Whether attention and layer norm may be fused kernels, on a GPU."""
        self._evaluates_batched = True
        self._merged = merged
        self._optimizer = optimizer
        self._chunk_size = chunk_size
        self._graphs: Graphs | None = None
        self._find_gradients = torch.compile(self.batched_gradients) if compile else self.batched_gradients
        self._update = torch.compile(optimizers.update) if compile else optimizers.update
        self._trial = LossOfModel(merged.base, *loss).to(device)
        self._settings = {name: one.to(device) for name, one in optimizers.parse_settings(optimizer, configs).items()}
        self._clips = bool(torch.isfinite(self._settings["max_grad_norm"]).any())
        self._hyper = {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in hyper.items()}
        self._varying = {key: torch.tensor(values, dtype=torch.float64, device=device) for key, values in merged.varying.items()}
        self._views: dict[str, list[tuple[int, ...] | None]] = {
            name: [own.get(name) for own in merged.views] for name in merged.shapes
        }
        tensors = [{**dict(model.named_parameters()), **dict(model.named_buffers())} for model in models]
        stacked = {
            name: stack([own.get(name) for own in tensors], self._views[name], merged.shapes[name]) for name in merged.shapes
        }
        self._lay_out(merged.base, stacked, device)
        self._buffers = {f"model.{name}": one.to(device) for name, one in stacked.items() if name not in self._columns}
        self._buffers |= stack_buffers([MemberRandom(seed) for seed in seeds], "random.", device)
        self._matrices = self._find_matrices([dict(model.named_parameters()) for model in models])
        self._state = optimizers.new_state(optimizer, self.weights)
        self.factor = torch.ones((), dtype=torch.float64, device=device)
        self._allocate()

    def _lay_out(self, base: nn.Module, stacked: Tensors, device: torch.device) -> None:
        """Give each trainable parameter its columns of the matrix of weights; matrices for Muon come first."""
        trainable = {name: one for name, one in base.named_parameters() if one.requires_grad}
        dtypes = {one.dtype for one in trainable.values()}
        if len(dtypes) > 1:
            raise OptionError(f"the parameters have the types {', '.join(map(str, dtypes))}; a population needs one type.")
        embeddings = {f"{path}.weight".lstrip(".") for path, one in base.named_modules() if isinstance(one, nn.Embedding)}
        self._muon = {name for name, one in trainable.items() if one.dim() == 2 and name not in embeddings}
        names = list(trainable)
        if self._optimizer == "muon":
            names.sort(key=lambda name: name not in self._muon)
        self._columns: dict[str, tuple[int, int]] = {}
        end = 0
        for name in names:
            size = math.prod(self._merged.shapes[name])
            self._columns[name] = end, size
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        num_members = len(self.members)
        weights = torch.zeros(num_members, end, dtype=dtypes.pop())
        mask = torch.zeros(num_members, end, dtype=weights.dtype) if self.is_padded else None
        for name in names:
            self._part(weights, name).copy_(stacked[name])
            if mask is not None:
                self._part(mask, name).copy_(real_entries(self._views[name], self._merged.shapes[name]))
        self.weights = weights.to(device)
        self._mask = None if mask is None else mask.to(device)

    def _find_matrices(self, parameters: Sequence[Mapping[str, torch.Tensor]]) -> list[optimizers.Matrix]:
        if self._optimizer != "muon":
            return []
        found = []
        for name in (one for one in self._columns if one in self._muon):
            shape = self._merged.shapes[name]
            split = 3 if len(shape) == 4 else 1  # padded projections of attention are [3, heads, head width, features]
            ratios = [lr_ratio(tuple(own[name].shape)) if name in own else 1.0 for own in parameters]
            found.append(
                optimizers.Matrix(
                    start=self._columns[name][0],
                    rows=math.prod(shape[:split]),
                    columns=math.prod(shape[split:]),
                    ratios=torch.tensor(ratios, dtype=torch.float64, device=self.weights.device),
                )
            )
        return found

    def _part(self, matrix: torch.Tensor, name: str) -> torch.Tensor:
        """The columns of a parameter in a matrix like the weights, in the shape of the parameter."""
        start, size = self._columns[name]
        return matrix[:, start : start + size].view(len(matrix), *self._merged.shapes[name])

    def _allocate(self) -> None:
        """Gradients and losses, where a graph finds them; a graph of other members is dropped."""
        self._graphs = None
        self.index = torch.tensor(self.members, device=self.weights.device)
        self._gradients = torch.zeros_like(self.weights)
        self.losses = torch.zeros(len(self.members), dtype=self.weights.dtype, device=self.weights.device)
        self._parameters = {name: self._part(self.weights, name) for name in self._columns}
        self._gradient_parts = [self._part(self._gradients, name) for name in self._columns]

    # The loss of a member, given its tensors.

    @contextmanager
    def _attributes(self, values: Mapping[tuple[str, str], Any]) -> Iterator[None]:
        """Give modules the numbers of one member, which are tensors under `vmap`."""
        before = []
        for (path, key), value in values.items():
            attributes = self._trial.model.get_submodule(path).__dict__
            before.append((attributes, key, attributes[key]))
            attributes[key] = value
        try:
            yield
        finally:
            for attributes, key, value in before:
                attributes[key] = value

    def _value(
        self,
        parameters: Tensors,
        buffers: Tensors,
        varying: Mapping[tuple[str, str], Any],
        numbers: Tensors,
        batch: Any,
        function: Callable[..., Any] | None = None,
    ) -> torch.Tensor:
        hyper = {name: numbers.get(name, value) for name, value in self._hyper.items()}
        tensors = {**{f"model.{name}": one for name, one in parameters.items()}, **buffers}
        with self._attributes(varying):
            found: torch.Tensor = functional_call(self._trial, tensors, (batch, hyper, function))
        return found

    def _of_member(self, number: int) -> tuple[Tensors, Mapping[tuple[str, str], Any], Tensors]:
        """Buffers, attributes and numbers of one member; attributes are plain numbers again."""
        varying = {key: values[number] for key, values in self._merged.varying.items()}
        return {name: one[number] for name, one in self._buffers.items()}, varying, self._numbers(number)

    def _numbers(self, number: int | None = None) -> Tensors:
        found = {name: one for name, one in self._hyper.items() if isinstance(one, torch.Tensor)}
        return found if number is None else {name: one[number] for name, one in found.items()}

    # Steps.

    def batched_gradients(self, batch: Any) -> tuple[Tensors, torch.Tensor]:
        """Gradients by name, and losses, of all members at once."""
        function = vmap(
            grad_and_value(self._value), in_dims=(0, 0, 0, 0, None), randomness="different", chunk_size=self._chunk_size
        )
        with _quiet() if self.slow_operations else nullcontext(), BatchedKernels(fuses=self.fuses):
            found: tuple[Tensors, torch.Tensor] = function(self._parameters, self._buffers, self._varying, self._numbers(), batch)
        return found

    def _compute(self, batch: Any) -> None:
        """Write gradients and losses of all members."""
        if self.is_batched:
            gradients, losses = self._find_gradients(batch)
            torch._foreach_copy_(self._gradient_parts, [gradients[name] for name in self._columns])
            self.losses.copy_(losses)
            return
        seen: Tensors = {}
        with self._trial.register_forward_hook(lambda module, *_: seen.update(module.named_buffers())):
            for number in range(len(self.members)):
                self._compute_alone(number, batch, seen)

    def _compute_alone(self, number: int, batch: Any, seen: Tensors) -> None:
        """Write gradients, loss and buffers of one member; `seen` are the buffers after a forward."""
        parameters = {name: one[number].detach().requires_grad_() for name, one in self._parameters.items()}
        buffers, varying, numbers = self._of_member(number)
        loss = self._value(parameters, buffers, varying, numbers, batch)
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for part, gradient in zip(self._gradient_parts, found, strict=True):
            part[number].zero_() if gradient is None else part[number].copy_(gradient)
        self.losses[number] = loss.detach()
        for name, one in buffers.items():
            if seen[name] is not one:  # the forward has assigned a new tensor
                one.copy_(seen[name].detach())

    def _do(self, batch: Any) -> None:
        """Forward, backward and update of all members."""
        self._compute(batch)
        if self._mask is not None:
            self._gradients.mul_(self._mask)
        if self._clips:
            optimizers.clip(self._gradients, self._settings)
        optimizers.count_step(self._state)
        self._update(
            self._optimizer,
            self.weights,
            self._gradients,
            self._state,
            self._settings,
            factor=self.factor,
            matrices=self._matrices,
        )

    def step(self, batch: Any, *, use_graph: bool) -> torch.Tensor:
        """One update of all members; their losses before it."""
        self._trial.train()
        if not use_graph:
            self._do(batch)
        else:
            if self._graphs is None:
                # A graph asks for a step with a part per micro-batch and one per update; here the first does it all.
                step = cast(EagerStep, SimpleNamespace(micro=self._do, update=lambda: True))
                readout = cast(Readout, SimpleNamespace(count=0))
                self._graphs = Graphs(step, readout, grad_accum_steps=1, preserve=self._preserve)
            self._graphs.micro(batch)
        return self.losses.clone()

    def _preserve(self) -> Callable[[], None]:
        """Copy all that a step changes; returns the function that puts it back."""
        changed = [self.weights, *self._state.values(), *self._buffers.values(), self.losses]
        copies = [one.clone() for one in changed]

        def restore() -> None:
            torch._foreach_copy_(changed, copies)
            if self.weights.is_cuda:
                torch.cuda.empty_cache()  # a capture has memory of its own, and cannot use what the steps before it left

        return restore

    def drop_graphs(self) -> None:
        """Release the memory of all graphs."""
        self._graphs = None

    def evaluate(self, batch: Any, function: Callable[..., Any] | None) -> torch.Tensor:
        """The loss, or the value of `function`, of all members in evaluation mode; nothing changes."""
        fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # its fused kernel cannot be batched
        self._trial.eval()
        buffers = {name: one.clone() for name, one in self._buffers.items()}
        try:
            with torch.no_grad(), _quiet():
                if self._evaluates_batched and self.is_batched:
                    try:
                        return self._evaluate_batched(buffers, batch, function)
                    except RuntimeError:  # kernels for evaluation, or the metric, may lack what training has
                        self._evaluates_batched = False
                return torch.stack([self._evaluate_member(row, buffers, batch, function) for row in range(len(self.members))])
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)

    def _evaluate_batched(self, buffers: Tensors, batch: Any, function: Callable[..., Any] | None) -> torch.Tensor:
        def value(parameters: Tensors, buffers: Tensors, varying: Mapping[tuple[str, str], Any], numbers: Tensors) -> torch.Tensor:
            return self._value(parameters, buffers, varying, numbers, batch, function)

        function_of_all = vmap(value, randomness="different", chunk_size=self._chunk_size)
        with BatchedKernels(fuses=self.fuses):
            found: torch.Tensor = function_of_all(self._parameters, buffers, self._varying, self._numbers())
        return found

    def _evaluate_member(self, row: int, buffers: Tensors, batch: Any, function: Callable[..., Any] | None) -> torch.Tensor:
        parameters = {name: one[row] for name, one in self._parameters.items()}
        _, varying, numbers = self._of_member(row)
        return self._value(parameters, {name: one[row] for name, one in buffers.items()}, varying, numbers, batch, function)

    # Members.

    @property
    def how(self) -> str:
        """How the members train, in words."""
        return "one by one" if not self.is_batched else "padded" if self.is_padded else "batched"

    def keep(self, positions: Mapping[int, int]) -> None:
        """Drop all members but those that have a new position; the memory of the others is released."""
        rows = [row for row, member in enumerate(self.members) if member in positions]
        rows.sort(key=lambda row: positions[self.members[row]])
        index = torch.tensor(rows, dtype=torch.int64, device=self.weights.device)
        self.members = [positions[self.members[row]] for row in rows]
        self.weights = self.weights[index]
        self._mask = None if self._mask is None else self._mask[index]
        pick = lambda given: {key: one[index] if one.dim() else one for key, one in given.items()}  # noqa: E731
        self._state, self._settings, self._buffers, self._varying = map(
            pick, (self._state, self._settings, self._buffers, self._varying)
        )
        self._hyper = {name: one[index] if isinstance(one, torch.Tensor) else one for name, one in self._hyper.items()}
        self._matrices = [
            optimizers.Matrix(start=one.start, rows=one.rows, columns=one.columns, ratios=one.ratios[index])
            for one in self._matrices
        ]
        self._views = {name: [views[row] for row in rows] for name, views in self._views.items()}
        for values in self._merged.varying.values():
            values[:] = [values[row] for row in rows]
        self.is_batched = self.is_batched and len(rows) > 1
        self._allocate()

    def copy_into(self, model: nn.Module, row: int) -> None:
        """Give a model the weights and buffers of a member."""
        named = {**self._parameters, **{name.removeprefix("model."): one for name, one in self._buffers.items()}}
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                view = self._views[name][row]
                assert view is not None  # the model has this tensor, so the member has it
                tensor.copy_(named[name][row][corner(view)].reshape(tensor.shape))

    def member_gradients(self, gradients: Mapping[str, torch.Tensor], row: int) -> Tensors:
        """The gradients of one member in the shapes of its own parameters, flattened."""
        views = {name: self._views[name][row] for name in self._columns}
        return {name: gradients[name][row][corner(view)].flatten() for name, view in views.items() if view is not None}

    def member_buffer(self, name: str, row: int) -> torch.Tensor:
        """A buffer of one member, flattened."""
        view = self._views[name][row]
        return self._buffers[f"model.{name}"][row][corner(view or ())].flatten()

    def tensors(self) -> Tensors:
        """All that training changes, by name."""
        return {
            "weights": self.weights,
            **{f"optimizer.{name}": one for name, one in self._state.items()},
            **{f"buffers.{name}": one for name, one in self._buffers.items()},
        }

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Continue from a copy of `tensors`."""
        own = self.tensors()
        if own.keys() != tensors.keys() or any(own[name].shape != tensors[name].shape for name in own):
            raise OptionError("the state is of a population with other models or another optimizer; load it into one like that.")
        for name, one in own.items():
            one.copy_(tensors[name])

    def clone_buffers(self) -> Callable[[], None]:
        """Copy all buffers; returns the function that puts them back."""
        copies = {name: one.clone() for name, one in self._buffers.items()}

        def restore() -> None:
            for name, one in copies.items():
                self._buffers[name].copy_(one)

        return restore


def stack_buffers(modules: Sequence[nn.Module], prefix: str, device: torch.device) -> Tensors:
    """The buffers of equal modules, stacked."""
    named = [dict(module.named_buffers()) for module in modules]
    return {prefix + name: torch.stack([own[name] for own in named]).to(device) for name in named[0]}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings about operations that torch loops over; they are part of the report."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield
