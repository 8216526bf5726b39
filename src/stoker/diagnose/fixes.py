"""Fixes: changes that `stoker diagnose` makes to a program from outside, one at a time. `FIXES` is the registry, by the names of advice.

A trial (trials.py) runs a program in a fresh process with one fix from the start, and compares it with the baseline. Some fixes can
also be switched on and off in a program that runs: a diagnosis measures some steps with each (windows.py), and predicts its
speed-up (advice.py).
"""

from __future__ import annotations

import functools
import inspect
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from stoker.diagnose.feed_fix import Collate, columns_of, unchanged
from stoker.diagnose.graph_fix import GraphedForward
from stoker.diagnose.hardware import keep_memory
from stoker.diagnose.hooks import leaves, replace
from stoker.diagnose.thresholds import RULE
from stoker.errors import OptionError
from stoker.train.optimizer import FUSED, set_fused


class Fix:
    """Base class: a fix overrides `install`, `begin` or `batch`, whichever it needs."""

    tolerance: float | None = RULE.loss_tolerance
    """Allowed relative difference of losses; None where they cannot be compared because the program sees other batches."""
    cuda_only = False
    samples_per_step = 1.0  # factor on the samples of a step
    caches = False  # whether the loop gets copies of earlier batches
    unused_reason = "it found nothing to change"  # why `used` is False at the end: the program never came to what is changed
    fits_if_unused = False  # whether the program may gain by it even if it cannot be changed from outside
    may_fail = False  # whether a program may raise an error with it
    with_data = False  # whether it also changes what batches cost: then it is not measured on cached batches
    lasts = False  # whether it cannot be undone: then it is measured as the last
    starts_slowly = False  # whether its first steps take longer than all else that is measured: they count towards no limit
    most_rounds = 1 << 30  # how often it can be switched on, at most
    queue = 0  # batches that it has prefetched, which say nothing about its speed

    def __init__(self, value: int | None = None) -> None:
        self.value = value  # the number of threads or workers, where a fix has one
        self.used = False
        self._undo = ExitStack()

    def install(self) -> None:
        """Change what exists before the program begins."""

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """Change what exists after the first steps: modules that the program calls (`roots`), its optimizer, flags that it has set."""

    def batch(self, value: Any) -> Any:
        """What the loop gets instead of a batch."""
        return value

    def next_batch(self, give: Callable[[], Any]) -> Any:
        """What the loop gets in a trial; `give` returns the next batch of the program."""
        return self.batch(give())

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Switch it on in a program that runs; returns the batches that the program gets."""
        self.install()
        self.begin(roots, optimizer)
        return batches

    def remove(self) -> None:
        """Undo every change."""
        self._undo.close()

    def replace(self, owner: Any, name: str, by: Any) -> None:
        """Replace an attribute until `remove`."""
        replace(self._undo, owner, name, by)


class ModuleFix(Fix, ABC):
    """Base class: changes each module whose call is the forward pass."""

    unused_reason = "no module with weights is called by the program's own loop"
    fits_if_unused = True

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        for module in roots:
            if any(weight.requires_grad for weight in module.parameters()):
                self._change(module)
                self.used = True

    @abstractmethod
    def _change(self, module: torch.nn.Module) -> None:
        """Change one module."""


SEED = 20_261  # Of every trial: a program draws the same numbers in each process. What it seeds itself stays its own.


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


def draw_each_epoch() -> None:
    """Draw for each epoch of a loader with persistent workers what others draw."""
    # Workers that are kept get their seed once. Without them each epoch draws one, and all that is drawn after that differs.
    original = _MultiProcessingDataLoaderIter._reset

    @functools.wraps(original)
    def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        original(iterator, loader, first_iter)

    setattr(_MultiProcessingDataLoaderIter, "_reset", reset)  # noqa: B010 - a type checker would compare the names of its arguments


@contextmanager
def kept_seeds() -> Iterator[None]:
    """Restore the states of the random number generators at the end."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)


class LoaderFix(Fix, ABC):
    """Base class: changes the arguments of every DataLoader that the program makes."""

    unused_reason = "the program makes no DataLoader"

    def install(self) -> None:
        original = DataLoader.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def changed(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            options = signature.bind(loader, *args, **kwargs).arguments
            options.pop("self")
            self._change(options)
            original(loader, **options)
            self._made(loader)

        self.replace(DataLoader, "__init__", changed)

    @abstractmethod
    def _change(self, options: dict[str, Any]) -> None:
        """Change the arguments of one loader in place and set `used`, or leave them and set `unused_reason`."""

    def _made(self, loader: DataLoader[Any]) -> None:
        """Called after a loader was made."""


class Autocast(ModuleFix):
    """The forward pass under `torch.autocast` in bfloat16; its outputs are float32 again."""

    tolerance = RULE.loss_tolerance_reduced
    may_fail = True

    def _change(self, module: torch.nn.Module) -> None:
        forward = module.forward
        weight = next(module.parameters())

        @functools.wraps(forward)
        def within(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(weight.device.type, torch.bfloat16):
                out = forward(*args, **kwargs)
            return tree_map_only(torch.Tensor, lambda one: one.float() if one.dtype is torch.bfloat16 else one, out)

        self.replace(module, "forward", within)


class KeptBatches:
    """What a fix has made of batches, where a loop gets the same objects in each epoch."""

    MAX_BYTES = 1 << 30

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], tuple[tuple[Any, ...], Any]] = {}  # with the batches, so that their ids stay their own
        self._bytes = 0

    def get(self, make: Callable[..., Any], *batches: Any) -> Any:
        """`make` of some batches: of the same ones it is called once, as long as there is room."""
        known = self._made.get(ids := tuple(map(id, batches)))
        if known is not None:
            return known[1]
        made = make(*batches)
        self._bytes += sum(one.nbytes for one in leaves(made) if isinstance(one, torch.Tensor))
        if self._bytes <= self.MAX_BYTES:
            self._made[ids] = (batches, made)
        return made


class Batch(LoaderFix):
    """`batch_size` doubled, also within a batch sampler; two batches in one where no DataLoader makes them.

    Samples per second are compared; losses differ.
    """

    tolerance = None
    samples_per_step = 2.0
    may_fail = True
    fits_if_unused = True  # cached batches without a row per sample cannot be doubled, but those of a loader can

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._doubled: list[Any] = []
        """Batch samplers that are doubled already: other libraries make loaders of the parts of loaders."""
        self._twice = KeptBatches()
        self._fails = False  # whether two batches were found that are not one

    def _change(self, options: dict[str, Any]) -> None:
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
            self.unused_reason = "the program makes its batches itself"

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Each batch with the one after it."""
        twice = [doubled(one, other) for one, other in zip(batches, [*batches[1:], *batches[:1]], strict=True)]
        kept = [one for one in twice if one is not None]
        self.used = len(kept) == len(batches) > 0
        return kept if self.used else batches

    def next_batch(self, give: Callable[[], Any]) -> Any:
        value = give()
        if self._doubled or self._fails:
            return value
        twice = self._twice.get(doubled, value, give())
        self.used, self._fails = twice is not None, twice is None
        if twice is None:
            self.unused_reason = "the batches do not have one row per sample"
        return value if twice is None else twice

    def _made(self, loader: DataLoader[Any]) -> None:
        if loader.batch_sampler is not None:
            self._doubled.append(loader.batch_sampler)


def doubled(one: Any, other: Any) -> Any:
    """The rows of two batches in one; None where they do not have one row per sample."""
    (mine, form), (theirs, same) = tree_flatten(one), tree_flatten(other)
    tensors = [*mine, *theirs]
    if form != same or not tensors or not all(isinstance(leaf, torch.Tensor) and leaf.ndim for leaf in tensors):
        return None
    shapes = {(len(a), a.shape[1:] == b.shape[1:]) for a, b in zip(mine, theirs, strict=True)}
    if len(shapes) != 1 or not next(iter(shapes))[1]:
        return None
    return tree_unflatten([torch.cat(pair) for pair in zip(mine, theirs, strict=True)], form)


class Cached(Fix):
    """The loop gets copies of its first batches again and again: a bound for every fix of the data. The trial hands them out."""

    tolerance = None
    caches = True
    unused_reason = "the batches do not come from an iterable, so they cannot be kept"


class Compile(ModuleFix):
    """The forward pass through `torch.compile`; with a value in `mode="reduce-overhead"`. Hooks of the module stay outside."""

    may_fail = True
    starts_slowly = True

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._compiled: dict[int, Any] = {}  # by the id of a module: so that it is compiled once

    def _change(self, module: torch.nn.Module) -> None:
        if id(module) not in self._compiled:
            self._compiled[id(module)] = torch.compile(module.forward, mode="reduce-overhead" if self.value else None)
        self.replace(module, "forward", self._compiled[id(module)])


class Cudnn(Fix):
    """`torch.backends.cudnn.benchmark = True`: cuDNN measures which of its convolutions is the fastest."""

    cuda_only = True
    unused_reason = "the model has no convolution, or cuDNN measures already"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        convolves = any(isinstance(part, torch.nn.modules.conv._ConvNd) for module in roots for part in module.modules())
        self.used = convolves and not torch.backends.cudnn.benchmark
        if self.used:
            self.replace(torch.backends.cudnn, "benchmark", True)


class Float32(Fix):
    """Weights, the state of the optimizer and batches in float32 instead of float64."""

    tolerance = RULE.loss_tolerance_reduced
    may_fail = True
    unused_reason = "no weight is float64"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        state = list(optimizer.state.values()) if optimizer is not None else []
        weights = [one for module in roots for one in (*module.parameters(), *module.buffers())]
        tensors = [*weights, *(one for values in state for one in values.values() if isinstance(one, torch.Tensor) and one.ndim)]
        for tensor in tensors:
            if tensor.dtype is torch.float64:
                self._undo.callback(_set_data, tensor, tensor.data)
                _set_data(tensor, tensor.data.float())
                self.used = True
        for module in roots if self.used else ():  # a loop may take its samples from a tensor by itself
            cast = module.register_forward_pre_hook(lambda _, args, kwargs: self.batch((args, kwargs)), with_kwargs=True)
            self._undo.callback(cast.remove)

    def batch(self, value: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda one: one.float() if one.dtype is torch.float64 else one, value)

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        self.begin(roots, optimizer)
        return [self.batch(one) for one in batches]


def _set_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    tensor.grad = None  # of the type that it had
    tensor.data = data


class Fused(Fix):
    """One kernel for the update of all weights: the fused implementation of each optimizer that has one, from its next step on."""

    unused_reason = "the optimizer has no fused implementation, or uses it already"

    def install(self) -> None:
        seen: set[int] = set()

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if id(optimizer) not in seen:
                seen.add(id(optimizer))
                self._fuse(optimizer)

        self._undo.callback(register_optimizer_step_pre_hook(before).remove)

    def _fuse(self, optimizer: Optimizer) -> None:
        groups = optimizer.param_groups
        gradients = [weight.grad for group in groups for weight in group["params"] if weight.grad is not None]
        if not isinstance(optimizer, FUSED) or groups[0].get("fused") or any(one.is_sparse for one in gradients):
            return
        if isinstance(optimizer, torch.optim.Adagrad) and any(one.device.type != "cpu" for one in gradients):
            return  # its fused implementation is for CPUs
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

        self._undo.callback(back)


class Graph(ModuleFix):
    """Forward and backward pass as CUDA graphs, captured at the next call of the model; and a fused optimizer.

    A whole step cannot be captured from outside: the loop reads batches and may read the loss. These stay as they are.
    """

    cuda_only = True
    may_fail = True

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._graphed: dict[int, GraphedForward] = {}  # by the id of a module: so that it is captured once

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        super().begin(roots, optimizer)
        fused = Fused()
        fused.install()
        self._undo.callback(fused.remove)

    def _change(self, module: torch.nn.Module) -> None:
        self.replace(module, "forward", self._graphed.setdefault(id(module), GraphedForward(module, self._refuse)))

    def _refuse(self, reason: str) -> None:
        self.used, self.unused_reason = False, reason


class Malloc(Fix):
    """Freed memory stays with the process: two settings of glibc, which cannot be undone."""

    unused_reason = "the allocator of this process has no such setting"
    with_data = True
    lasts = True
    most_rounds = 1

    def install(self) -> None:
        self.used = keep_memory()


class Pinned(LoaderFix):
    """`pin_memory=True`, and `non_blocking=True` for what comes from such memory.

    Batches that no DataLoader makes are pinned when the loop gets them: once where they are the same objects in each epoch.
    """

    cuda_only = True
    unused_reason = "no batch lies in plain memory of the host"

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._pinned = KeptBatches()

    def install(self) -> None:
        super().install()
        self._unblock()

    def _unblock(self) -> None:
        for name in ("to", "cuda"):
            self.replace(torch.Tensor, name, _unblocked(getattr(torch.Tensor, name)))

    def _change(self, options: dict[str, Any]) -> None:
        options["pin_memory"] = True
        self.used = True

    def batch(self, value: Any) -> Any:
        return self._pinned.get(self._pin, value)

    def _pin(self, value: Any) -> Any:
        if not any(isinstance(one, torch.Tensor) and one.device.type == "cpu" and not one.is_pinned() for one in leaves(value)):
            return value
        self.used = True
        return tree_map_only(torch.Tensor, lambda one: one.pin_memory() if one.device.type == "cpu" else one, value)

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Batches that are pinned already."""
        self._unblock()
        return [self.batch(one) for one in batches]


def _unblocked(original: Any) -> Any:
    @functools.wraps(original)
    def copied(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "cpu" and len(args) < 2 and tensor.is_pinned():
            kwargs.setdefault("non_blocking", True)
        return original(tensor, *args, **kwargs)

    return copied


class FusedAttention(Fix):
    """`nn.MultiheadAttention` with `need_weights=False`, which uses scaled_dot_product_attention."""

    unused_reason = "no nn.MultiheadAttention of the program asks for its weights"

    def install(self) -> None:
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


class Tf32(Fix):
    """`torch.set_float32_matmul_precision("high")`, also for convolutions."""

    tolerance = RULE.loss_tolerance_reduced
    cuda_only = True
    unused_reason = "float32 matmuls may use TF32 already"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        given = torch.get_float32_matmul_precision()
        self.used = given == "highest" or not torch.backends.cudnn.allow_tf32
        if self.used:
            torch.set_float32_matmul_precision("high")
            self._undo.callback(torch.set_float32_matmul_precision, given)
            self.replace(torch.backends.cudnn, "allow_tf32", True)


class Threads(Fix):
    """`torch.set_num_threads`."""

    with_data = True

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        given = torch.get_num_threads()
        torch.set_num_threads(self.value or 1)
        self._undo.callback(torch.set_num_threads, given)
        self.used = True


class Workers(LoaderFix):
    """`num_workers` with persistent workers, for map-style datasets: each worker would give all samples of an iterable one."""

    def _change(self, options: dict[str, Any]) -> None:
        if isinstance(options["dataset"], IterableDataset):
            self.unused_reason = "the dataset is an IterableDataset: each worker would give all of its samples"
            return
        options["num_workers"] = self.value or 2
        options["persistent_workers"] = True
        self.used = True


class GatheredLoader(LoaderFix):
    """Each batch gathered at once from columns, as stoker.Feed does, in the order of the program's sampler.

    For datasets whose samples are rows or windows of arrays, or are few enough to be read once before the training.
    """

    unused_reason = "the program makes no DataLoader of a map-style dataset"

    def _change(self, options: dict[str, Any]) -> None:
        dataset = options["dataset"]
        if isinstance(dataset, GatheredDataset):
            return
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            self.unused_reason = "the samples of the dataset are not found by index"
        elif options.get("batch_size", 1) is None and options.get("batch_sampler") is None:
            gathers = isinstance(options.get("sampler"), BatchSampler)
            self.unused_reason = "the dataset makes whole batches " + ("already" if gathers else "itself")
        else:
            gathered = GatheredDataset(dataset, options.get("collate_fn") or default_collate, self)
            options.update(dataset=gathered, collate_fn=unchanged, num_workers=0)
            for name in ("persistent_workers", "prefetch_factor", "worker_init_fn", "multiprocessing_context"):
                options.pop(name, None)


class GatheredDataset(Dataset[Any]):
    """A dataset that returns batches: from columns, or, where it has none, as before."""

    def __init__(self, dataset: Any, collate: Collate, fix: GatheredLoader) -> None:
        self._dataset = dataset
        self._collate = collate
        self._fix = fix
        self._columns: Any = None

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __getitem__(self, number: int) -> Any:
        return self._dataset[number]

    def __getitems__(self, numbers: list[int]) -> Any:
        """The batch of these samples; columns are made at the first call."""
        if self._columns is None:
            with kept_seeds():
                self._columns = columns_of(self._dataset, self._collate)
            if isinstance(self._columns, str):
                self._fix.unused_reason = self._columns
            else:
                self._fix.used = True
        if isinstance(self._columns, str):
            return self._collate([self._dataset[number] for number in numbers])
        return self._columns.__getitems__(numbers)


FIXES: dict[str, type[Fix]] = {
    "autocast": Autocast,
    "batch": Batch,
    "cached": Cached,
    "compile": Compile,
    "cudnn": Cudnn,
    "feed": GatheredLoader,
    "float32": Float32,
    "fused": Fused,
    "graph": Graph,
    "malloc": Malloc,
    "pinned": Pinned,
    "sdpa": FusedAttention,
    "tf32": Tf32,
    "threads": Threads,
    "workers": Workers,
}
"""All fixes, by the names that advice gives them."""


def fix_named(name: str) -> type[Fix]:
    """The fix of this name."""
    if name not in FIXES:
        raise OptionError(f"there is no fix {name!r}; expected one of {', '.join(FIXES)}.")
    return FIXES[name]
