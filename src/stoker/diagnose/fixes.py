"""A fix: one change of a program, made from outside while it starts or after its first steps, and nothing else.

A trial runs a program with one from the start. Some can also be switched on and off in a program that runs (`inside`): a diagnosis
measures some steps with each, and predicts what it gives.
"""

from __future__ import annotations

import functools
import inspect
import random
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from stoker.diagnose.hardware import keep_memory
from stoker.diagnose.hooks import leaves
from stoker.diagnose.thresholds import RULE
from stoker.errors import OptionError, TrainError
from stoker.train.numerics import FUSED, set_fused


class Fix:
    """What all fixes have; each one changes what it needs to."""

    tolerance: float | None = RULE.loss_tolerance
    """None where losses cannot be compared: the program then sees other batches."""
    cuda_only = False
    samples_a_step = 1.0
    """Times those of the program."""
    caches = False
    """Whether the loop gets copies of earlier batches."""
    nothing = "it found nothing to change"
    """Told where the program never came to what is changed."""
    may_fail = False
    """Whether a program may raise an error with it."""
    with_data = False
    """Whether it changes what batches cost, too: then it is not measured on batches that cost nothing."""

    def __init__(self, value: int | None = None) -> None:
        self.value = value
        """How many, where a fix has a number."""
        self.used = False
        self._undo: list[Callable[[], Any]] = []

    def install(self) -> None:
        """Change what is there before the program begins."""

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """Change what is there after the first steps: the modules that the program calls, and its optimizer."""

    def batch(self, value: Any) -> Any:
        """What the loop gets in place of a batch."""
        return value

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Switch it on in a program that runs; gives the batches that it is to get."""
        self.install()
        self.begin(roots, optimizer)
        return batches

    def remove(self) -> None:
        """All is as before."""
        while self._undo:
            self._undo.pop()()

    def replace(self, owner: Any, name: str, by: Any) -> None:
        """Put something in place of an attribute, until `remove`."""
        inherited, original = name not in vars(owner), getattr(owner, name)
        setattr(owner, name, by)
        # What an object had from its class is not left behind on the object itself; flags of torch are kept elsewhere.
        shadows = inherited and name in vars(owner)
        self._undo.append(lambda: delattr(owner, name) if shadows else setattr(owner, name, original))


class ModuleFix(Fix):
    """A fix of the modules whose call is the forward pass."""

    nothing = "no module with weights is called by the program's own loop"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """Change each module that has weights."""
        for module in roots:
            if any(weight.requires_grad for weight in module.parameters()):
                self.change(module)
                self.used = True

    def change(self, module: torch.nn.Module) -> None:
        """Change one module."""
        raise NotImplementedError


# Seeds: all that a program may draw from begins the same, in each process anew; what the program sets itself stays its own.

SEED = 20_261


def set_seeds() -> None:
    """Seed torch, NumPy and Python, and generators that would be seeded by the machine."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    original = np.random.default_rng
    made = iter(range(1 << 62))

    @functools.wraps(original)
    def seeded(seed: Any = None) -> np.random.Generator:
        return original((SEED, next(made)) if seed is None else seed)

    np.random.default_rng = seeded


@contextmanager
def kept_seeds() -> Iterator[None]:
    """What is drawn meanwhile does not count."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)


# Fixes of loaders: what a program gives to `DataLoader` is changed on its way there.


class LoaderFix(Fix):
    """A fix of every DataLoader of the program."""

    nothing = "the program makes no DataLoader"

    def install(self) -> None:
        """Change the options of loaders that are made from here on."""
        original = DataLoader.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def changed(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            options = signature.bind(loader, *args, **kwargs).arguments
            options.pop("self")
            self.change(options)
            original(loader, **options)
            self.made(loader)

        self.replace(DataLoader, "__init__", changed)

    def change(self, options: dict[str, Any]) -> None:
        """Change the options of one loader in place; sets `used`, or leaves them as they are and says why in `nothing`."""
        raise NotImplementedError

    def made(self, loader: DataLoader[Any]) -> None:
        """A loader was made."""


def is_map_style(options: dict[str, Any]) -> bool:
    """Whether samples are found by their numbers."""
    return not isinstance(options["dataset"], IterableDataset)


# Autocast: products of the model in bfloat16; what it gives to the loss is float32 again.


class Autocast(ModuleFix):
    """The forward pass under `torch.autocast`."""

    tolerance = RULE.loss_tolerance_reduced
    may_fail = True

    def change(self, module: torch.nn.Module) -> None:
        """Wrap the forward pass."""
        forward = module.forward
        weight = next(module.parameters())

        @functools.wraps(forward)
        def within(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(weight.device.type, torch.bfloat16):
                out = forward(*args, **kwargs)
            return tree_map(_widened, out)

        self.replace(module, "forward", within)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16 else value


# Batch: twice as many samples a step. What is compared is samples a second; the training itself is another one.


class Batch(LoaderFix):
    """`batch_size` doubled, also within a sampler of batches."""

    tolerance = None
    samples_a_step = 2.0
    may_fail = True

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._doubled: list[Any] = []
        """Samplers of batches that are twice as large already: other libraries make loaders of the parts of loaders."""

    def change(self, options: dict[str, Any]) -> None:
        """Double the batch."""
        sampler = options.get("batch_sampler") or options.get("sampler")
        if isinstance(sampler, BatchSampler):
            if not any(sampler is one for one in self._doubled):
                sampler.batch_size *= 2
                self._doubled.append(sampler)
            self.used = True
        elif options.get("batch_size", 1) is not None and options.get("batch_sampler") is None:
            options["batch_size"] = 2 * options.get("batch_size", 1)
            self.used = True
        else:
            self.nothing = "the program makes its batches itself"

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Each batch with the one after it."""
        twice = [doubled(one, other) for one, other in zip(batches, [*batches[1:], *batches[:1]], strict=True)]
        kept = [one for one in twice if one is not None]
        self.used = len(kept) == len(batches) > 0
        return kept if self.used else batches

    def made(self, loader: DataLoader[Any]) -> None:
        """Remember the sampler of a loader that is twice as large."""
        if loader.batch_sampler is not None:
            self._doubled.append(loader.batch_sampler)


def doubled(one: Any, other: Any) -> Any:
    """The rows of two batches in one; None where they do not have a row a sample."""
    (mine, form), (theirs, same) = tree_flatten(one), tree_flatten(other)
    tensors = [*mine, *theirs]
    if form != same or not tensors or not all(isinstance(leaf, torch.Tensor) and leaf.ndim for leaf in tensors):
        return None
    shapes = {(len(a), a.shape[1:] == b.shape[1:]) for a, b in zip(mine, theirs, strict=True)}
    if len(shapes) != 1 or not next(iter(shapes))[1]:
        return None
    return tree_unflatten([torch.cat(pair) for pair in zip(mine, theirs, strict=True)], form)


# Cached: batches cost nothing. A bound of what any fix of the data can give, not a fix.


class Cached(Fix):
    """The loop gets copies of its first batches, again and again; the trial hands them out."""

    tolerance = None
    caches = True
    nothing = "the batches do not come from an iterable, so they cannot be kept"


# Compile: the forward pass of the model through `torch.compile`, and its backward pass with it.
#
# With a number it is compiled for few launches (`mode="reduce-overhead"`): where it can, torch then runs it as CUDA graphs.


class Compile(ModuleFix):
    """The forward pass compiled; hooks of the module stay outside, where they cost the compiler nothing."""

    def change(self, module: torch.nn.Module) -> None:
        """Compile the forward pass at its next call."""
        compiled = torch.compile(module.forward, mode="reduce-overhead") if self.value else torch.compile(module.forward)
        self.replace(module, "forward", compiled)


# cuDNN: let it measure which of its convolutions is the fastest.


class Cudnn(Fix):
    """`torch.backends.cudnn.benchmark = True`."""

    cuda_only = True
    nothing = "the model has no convolution, or cuDNN measures already"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """After the program has set its own."""
        kinds = (torch.nn.modules.conv._ConvNd,)
        convolves = any(isinstance(part, kinds) for module in roots for part in module.modules())
        self.used = convolves and not torch.backends.cudnn.benchmark
        if self.used:
            self.replace(torch.backends.cudnn, "benchmark", True)


# Fused: one kernel for the update of all weights.


class Fused(Fix):
    """The fused implementation of each optimizer that has one, from its next step on."""

    nothing = "the optimizer has no fused implementation, or uses it already"

    def install(self) -> None:
        """Change optimizers when they are about to step for the first time."""
        seen: set[int] = set()

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if id(optimizer) not in seen:
                seen.add(id(optimizer))
                self._change(optimizer)

        self._undo.append(register_optimizer_step_pre_hook(before).remove)

    def _change(self, optimizer: Optimizer) -> None:
        groups = optimizer.param_groups
        gradients = [weight.grad for group in groups for weight in group["params"] if weight.grad is not None]
        if not isinstance(optimizer, FUSED) or groups[0].get("fused") or any(one.is_sparse for one in gradients):
            return
        given = [{name: group.get(name) for name in ("foreach", "fused")} for group in groups]
        for group in groups:
            group["foreach"] = False
        set_fused(optimizer, True)
        self.used = True

        def back() -> None:
            set_fused(optimizer, False)
            for group, before in zip(groups, given, strict=True):
                group.update(before)
                if group.get("capturable"):  # such an optimizer counts its steps where its weights are
                    for weight in group["params"]:
                        state = optimizer.state.get(weight, {})
                        if "step" in state:
                            state["step"] = state["step"].to(weight.device)

        self._undo.append(back)


# Graph: forward and backward of the model as CUDA graphs, and the optimizer's update as one kernel.
#
# A whole step of a program that nobody may change cannot be captured: its loop runs each step anew, reads batches, and may look
# at
# the loss. What is replayed is what torch can put in place of the model's call; the loss and the loop stay as they are.


class Graph(ModuleFix):
    """The model through `torch.cuda.make_graphed_callables`, captured at its next call; and a fused optimizer."""

    cuda_only = True
    may_fail = True

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """Change the model, and the optimizer at its next step."""
        super().begin(roots, optimizer)
        fused = Fused()
        fused.install()
        self._undo.append(fused.remove)

    def change(self, module: torch.nn.Module) -> None:
        """Capture when arguments are at hand."""
        forward = module.forward
        graphed: dict[Any, Any] = {}

        def capturing(*args: Any, **kwargs: Any) -> Any:
            if kwargs or not all(isinstance(one, torch.Tensor) for one in args):
                raise TrainError("the model is not called with tensors alone, by position: a graph of it cannot be captured.")
            if not (torch.is_grad_enabled() and module.training):
                return forward(*args)
            shapes = tuple((one.shape, one.dtype) for one in args)
            if not graphed:
                graphed[shapes] = _capture(module, forward, args)
                module.forward = capturing
            return graphed.get(shapes, forward)(*args)  # of one shape only: others, such as a last batch, run as before

        self.replace(module, "forward", capturing)


def _capture(module: torch.nn.Module, forward: Any, args: tuple[torch.Tensor, ...]) -> Any:
    # torch refuses modules with hooks; those that watch the module are called outside of its forward pass anyway.
    hooks, module._forward_pre_hooks = module._forward_pre_hooks, OrderedDict()
    module.forward = forward
    try:
        samples = tuple(one.detach().clone().requires_grad_(one.requires_grad) for one in args)
        with warnings.catch_warnings():
            # Capturing uses a stream of its own, other than that of earlier steps. Losses are compared afterwards.
            warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
            torch.cuda.make_graphed_callables(module, samples)
        return module.forward
    finally:
        module._forward_pre_hooks = hooks


# Malloc: memory that is free stays with the process, in place of being given back to the system and asked for at each step.


class Malloc(Fix):
    """Two settings of glibc, which cannot be undone: it is tried, and never switched on in a program that is measured."""

    nothing = "the allocator of this process has no such setting"

    def install(self) -> None:
        """Before the program begins."""
        self.used = keep_memory()


# Pinned: batches in memory that the GPU reads by itself, and copies that the host does not wait for.

LARGEST_BYTES = 2 << 30
"""Of batches that come again and again, and are pinned once."""


class Pinned(LoaderFix):
    """`pin_memory=True`, and `non_blocking=True` for what comes from such memory.

    Batches that no DataLoader makes are pinned when the loop gets them: once where they are the same objects in each epoch.
    """

    cuda_only = True
    nothing = "no batch lies in plain memory of the host"

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._pinned: dict[int, tuple[Any, Any]] = {}
        """By the id of a batch: the batch itself, so that its id stays its own, and the same pinned."""
        self._bytes = 0

    def install(self) -> None:
        """Change loaders and copies."""
        super().install()
        self._unblock()

    def _unblock(self) -> None:
        for name in ("to", "cuda"):
            self.replace(torch.Tensor, name, _unblocked(getattr(torch.Tensor, name)))

    def change(self, options: dict[str, Any]) -> None:
        """Pin."""
        options["pin_memory"] = True
        self.used = True

    def batch(self, value: Any) -> Any:
        """The same in pinned memory."""
        known = self._pinned.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        plain = [one for one in leaves(value) if isinstance(one, torch.Tensor) and one.device.type == "cpu" and not one.is_pinned()]
        if not plain:
            return value
        self.used = True
        pinned = tree_map(_pin, value)
        self._bytes += sum(one.nbytes for one in plain)
        if self._bytes <= LARGEST_BYTES:
            self._pinned[id(value)] = (value, pinned)
        return pinned

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Batches that are pinned already."""
        self._unblock()
        return [self.batch(one) for one in batches]


def _pin(value: Any) -> Any:
    return value.pin_memory() if isinstance(value, torch.Tensor) and value.device.type == "cpu" else value


def _unblocked(original: Any) -> Any:
    @functools.wraps(original)
    def copied(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "cpu" and len(args) < 2 and tensor.is_pinned():
            kwargs.setdefault("non_blocking", True)
        return original(tensor, *args, **kwargs)

    return copied


# SDPA: attention that does not give its weights away, and so need not store them.


class Attention(Fix):
    """`nn.MultiheadAttention` with `need_weights=False`: scaled_dot_product_attention takes its place."""

    nothing = "no nn.MultiheadAttention of the program asks for its weights"

    def install(self) -> None:
        """Change every call of the module."""
        original = torch.nn.MultiheadAttention.forward
        signature = inspect.signature(original)

        @functools.wraps(original)
        def without_weights(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            if given.get("need_weights", True):
                self.used = True
                given["need_weights"] = False
            return original(**given)

        self.replace(torch.nn.MultiheadAttention, "forward", without_weights)


# TF32: products of float32 with the shorter mantissa that GPUs have for them.


class Tf32(Fix):
    """`torch.set_float32_matmul_precision("high")`, also for convolutions."""

    tolerance = RULE.loss_tolerance_reduced
    cuda_only = True
    nothing = "products of float32 may use TF32 already"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """After the program has set its own."""
        given = torch.get_float32_matmul_precision()
        self.used = given == "highest" or not torch.backends.cudnn.allow_tf32
        if self.used:
            torch.set_float32_matmul_precision("high")
            self._undo.append(lambda: torch.set_float32_matmul_precision(given))
            self.replace(torch.backends.cudnn, "allow_tf32", True)


# Threads: another number of them within an operation.


class Threads(Fix):
    """`torch.set_num_threads`."""

    with_data = True

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """After the program has set its own."""
        given = torch.get_num_threads()
        torch.set_num_threads(self.value or 1)
        self._undo.append(lambda: torch.set_num_threads(given))
        self.used = True


# Workers: processes that make batches ahead.


class Workers(LoaderFix):
    """`num_workers`, kept between epochs; for datasets whose samples are found by number, since others would come several times."""

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._kept_before = False
        self._drawing: list[Any] = []
        """Loaders that drew a seed for each epoch."""

    def install(self) -> None:
        """Change loaders; and draw for each epoch what a loader without workers draws.

        Workers that are kept get their seed once. Without them each epoch draws one, and all that is drawn after that differs.
        """
        super().install()
        original = _MultiProcessingDataLoaderIter._reset

        @functools.wraps(original)
        def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter and any(loader is one for one in self._drawing):
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            original(iterator, loader, first_iter)

        self.replace(_MultiProcessingDataLoaderIter, "_reset", reset)

    def change(self, options: dict[str, Any]) -> None:
        """Set the number of workers."""
        if not is_map_style(options):
            self.nothing = "the dataset is an IterableDataset: each worker would give all of its samples"
            return
        self._kept_before = bool(options.get("persistent_workers"))
        options["num_workers"] = self.value or 2
        options["persistent_workers"] = True
        self.used = True

    def made(self, loader: DataLoader[Any]) -> None:
        """Remember who drew a seed for each epoch."""
        if not self._kept_before:
            self._drawing.append(loader)


FIXES: dict[str, type[Fix] | None] = {
    "autocast": Autocast,
    "batch": Batch,
    "cached": Cached,
    "compile": Compile,
    "cudnn": Cudnn,
    "feed": None,  # in stoker.diagnose.feed_fix, which stands on this module and imports more
    "fused": Fused,
    "graph": Graph,
    "malloc": Malloc,
    "pinned": Pinned,
    "sdpa": Attention,
    "tf32": Tf32,
    "threads": Threads,
    "workers": Workers,
}
"""Fixes by the names that advice gives them."""


def fix_named(name: str) -> type[Fix]:
    """The fix of this name."""
    if name not in FIXES:
        raise OptionError(f"there is no fix {name!r}; expected one of {', '.join(FIXES)}.")
    found = FIXES[name]
    if found is None:
        from stoker.diagnose.feed_fix import Gathered

        return Gathered
    return found
