"""The fix `graph`: forward and backward pass of a model as CUDA graphs, captured in a program that runs.

`GraphedForward` stands in for the forward method of a module. `torch.cuda.make_graphed_callables` captures, with three differences:

- A loop that keeps its last loss keeps the autograd nodes that add to the gradients of its weights, and these belong to the default
  stream, on which nothing can be captured. So other tensors take the places of the weights meanwhile, with the same memory.
- What is run to warm up leaves buffers and random numbers as they were.
- Gradients stay in the memory of a graph, which the next replay overwrites. Those that a loop may add to are copied before it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

CONSTANTS = (bool, int, float, str, type(None))  # arguments of a model that are part of its graph


class GraphedForward:
    """A forward method that captures itself at its first call with gradients; calls of other shapes run as before.

    If it cannot, because of how the model is called, `refuse` is called with the reason, and all calls run as before.
    """

    def __init__(self, module: torch.nn.Module, refuse: Callable[[str], None]) -> None:
        self._module = module
        self._refuse = refuse
        self._forward = module.forward
        self._weights = [one for one in module.parameters() if one.requires_grad]
        self._form: Any = None  # of the call that was captured: its structure, shapes and constants
        self._replay: Callable[..., Any] | None = None
        self._kept: dict[int, torch.Tensor] = {}  # by the number of a weight: a gradient in memory of its own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The forward pass."""
        if not (torch.is_grad_enabled() and self._module.training):
            return self._forward(*args, **kwargs)
        values, structure = tree_flatten((args, kwargs))
        tensors = [one for one in values if isinstance(one, torch.Tensor)]
        others = sorted({type(one).__name__ for one in values if not isinstance(one, (torch.Tensor, *CONSTANTS))})
        if others:
            self._refuse(f"the model is called with {', '.join(others)}; a graph has tensors and plain values as arguments")
            return self._forward(*args, **kwargs)
        shapes = [(one.shape, one.dtype, one.device) if isinstance(one, torch.Tensor) else one for one in values]
        form = (structure, shapes, torch.is_autocast_enabled("cuda"))
        if self._replay is None:
            self._form, self._replay = form, self._capture(values, structure)
        if form != self._form:
            return self._forward(*args, **kwargs)
        self._keep_gradients()
        out = self._replay(*tensors, *self._weights)
        # The next replay overwrites its outputs, too. A loop uses most of them before that, but it may keep its losses.
        return tree_map_only(torch.Tensor, lambda one: one.clone() if one.numel() == 1 else one, out)

    def _capture(self, values: Sequence[Any], structure: Any) -> Callable[..., Any]:
        places = [number for number, one in enumerate(values) if isinstance(one, torch.Tensor)]

        def run(*tensors: torch.Tensor) -> Any:
            given = list(values)
            for place, one in zip(places, tensors, strict=False):  # the weights come after them
                given[place] = one
            args, kwargs = tree_unflatten(given, structure)
            return self._forward(*args, **kwargs)

        samples = tuple(values[place].detach().clone().requires_grad_(values[place].requires_grad) for place in places)
        with other_weights(self._module, self._weights) as weights, unchanged_state(self._module), no_autocast_cache():
            replay: Callable[..., Any] = torch.cuda.make_graphed_callables(run, (*samples, *weights), allow_unused_input=True)
        return replay

    def _keep_gradients(self) -> None:
        """Before a replay: copy gradients that it may overwrite, also that of the forward pass, which uses the same memory."""
        found = [(number, one.grad) for number, one in enumerate(self._weights) if one.grad is not None]
        moved = [(number, grad) for number, grad in found if grad is not self._kept.get(number)]
        if moved:
            copies = torch._foreach_mul([grad for _, grad in moved], 1.0)  # few kernels for all
            for (number, _), copy in zip(moved, copies, strict=True):
                self._weights[number].grad = self._kept[number] = copy


@contextmanager
def other_weights(module: torch.nn.Module, weights: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Other parameters with the same memory in the places of `weights`, until the end."""
    others = {id(one): torch.nn.Parameter(one.detach()) for one in weights}
    places = [(part, name, one) for part in module.modules() for name, one in part._parameters.items() if id(one) in others]
    try:
        for part, name, one in places:
            setattr(part, name, others[id(one)])
        yield list(others.values())
    finally:
        for part, name, one in places:
            setattr(part, name, one)


@contextmanager
def unchanged_state(module: torch.nn.Module) -> Iterator[None]:
    """Restore the module's buffers and the random numbers of the GPU at the end."""
    buffers = [(one, one.clone()) for one in module.buffers()]
    state = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        with torch.no_grad():
            for one, before in buffers:
                one.copy_(before)
        if state is not None:
            torch.cuda.set_rng_state(state)


@contextmanager
def no_autocast_cache() -> Iterator[None]:
    """Weights cast under autocast are not kept: torch refuses to capture them, because a graph must cast them at each replay."""
    kept = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        with warnings.catch_warnings():
            # Warming up and capturing each use a stream of their own. Losses are compared afterwards.
            warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
            yield
    finally:
        torch.set_autocast_cache_enabled(kept)
