"""Observes a training program from inside its process: hooks in torch, and no change of the program.

An `Observer` records the time of each optimizer step and the loss of each backward pass, without waiting for the device. A run that is
compared by its results also records fingerprints of the initial weights, of the samples that enter the model and of the states of the
random number generators. Runs that are timed do not, so the cost of fingerprints is in no time.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib.metadata
import os
import random
import resource
import sys
import sysconfig
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

import stoker
from stoker._batch import num_rows, tensors_of
from stoker._clock import RunQueueDelay, now_ns
from stoker.compare.fingerprints import perturb, row_fingerprints, short_hash, whole_fingerprint
from stoker.compare.observed import INSTALLED, Observed, RunRequest, SeenSamples
from stoker.sandbox import original

MIN_STEPS, USUAL_STEPS, MOST_STEPS = 20, 200, 2000
"""Steps of the first run, which sets the number for all: at least, without a known epoch, and to reach the second epoch."""
INTO_NEXT_EPOCH = 1.3  # epochs after which a repetition of the first one has been seen
MAX_ROWS = 1 << 20  # samples whose fingerprints are kept
READ_ONCE = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "TORCH_", "PYTORCH_", "CUDA_", "CUBLAS_", "NVIDIA_")
"""Starts of the names of environment variables that libraries read when they are loaded."""


class Observer:
    """Records a run by hooks in torch. `done` is called when the run has made its steps."""

    def __init__(self, request: RunRequest, done: Callable[[], None]) -> None:
        self._request, self._done = request, done
        self.steps = 0
        self._ends: list[int] = []
        self._losses: list[Any] = []
        self._losses_at: list[int] = []  # number of losses by the end of each step
        self._unscaled: dict[int, tuple[Any, Any]] = {}  # by the id of a scaled loss: a reference to it, and the loss itself
        self._in_backward = self._stepped_inside = self._by_hand = self._capturing = self._captured_step = False
        self._backwards = 0
        self._marks: dict[int, float] = {}  # by a number of steps: when the device had finished them
        self._delay: RunQueueDelay | None = None
        self._main = ""
        self._weights: list[tuple[str, Any]] = []
        self._parameters = 0
        self._random: dict[str, list[int]] = {}
        self._rows: dict[bool, list[tuple[Any, Any]]] = {True: [], False: []}  # by whether gradients are enabled
        self._num_rows = {True: 0, False: 0}
        self._rows_at: list[tuple[int, int]] = []
        self._mode: dict[bool, bool] = {}
        self._depth = 0
        self._epsilon = 2.0**-23
        self._loaders = LoaderWatch(self)
        self._environment = dict(os.environ)

    def install(self) -> None:
        """Install the hooks."""
        register_optimizer_step_post_hook(self._after_step)
        torch.autograd.backward = self._watched_backward(torch.autograd.backward)
        scaler: Any = torch.amp.GradScaler
        scaler.scale = self._watched_scale(scaler.scale)
        self._watch_graphs()
        if self._request.observe:
            self._loaders.install()
        if self._request.observe or self._request.perturb:
            register_optimizer_step_pre_hook(self._before_step)
            torch.nn.Module.__call__ = self._watched_call(torch.nn.Module.__call__)  # type: ignore[method-assign]

    # Steps and losses.

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._capturing:  # nothing is computed yet
            self._captured_step = True
        elif self._in_backward:  # an optimizer per weight, called by hooks of the gradients: all of them are one step
            self._stepped_inside = True
        else:
            self._count_step()

    def _count_step(self) -> None:
        self.steps += 1
        self._backwards = 0
        self._ends.append(now_ns())
        self._losses_at.append(len(self._losses))
        if self.steps == 1:
            self._delay = RunQueueDelay()
            self._main = str(getattr(sys.modules["__main__"], "__file__", None) or "")  # of scripts that end it is not known later
        request = self._request
        if request.observe:
            self._rows_at.append((self._num_rows[True], self._num_rows[False]))
            for name, state in self._generators().items():
                self._random.setdefault(name, []).append(state)
        if request.steps is not None and self.steps == request.steps // 2:
            self._mark()
        if self._has_enough():
            self._mark()
            self._done()

    def _has_enough(self) -> bool:
        request, steps = self._request, self.steps
        if request.whole:
            return False
        if request.steps is not None:
            return steps >= request.steps
        seconds = (self._ends[-1] - self._ends[0]) / 1e9
        if request.until is not None or steps < MIN_STEPS:
            return request.until is not None and seconds >= request.until
        epoch = self._loaders.steps_per_epoch
        wanted = USUAL_STEPS if epoch is None else max(USUAL_STEPS, int(INTO_NEXT_EPOCH * epoch))
        return steps >= min(wanted, MOST_STEPS) or (request.seconds is not None and seconds >= request.seconds)

    def _mark(self) -> None:
        """Wait for the device: twice in a run, so that the time of a half includes its work."""
        if uses_cuda():
            torch.cuda.synchronize()
        self._marks[self.steps] = (now_ns() - self._request.begin_ns) / 1e9

    def _watched_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._in_backward:
                return original(*args, **kwargs)
            loss = args[0] if args else kwargs.get("tensors")
            if isinstance(loss, torch.Tensor) and loss.numel() == 1 and not self._capturing:
                self._losses.append(self._without_scale(loss))
            self._in_backward = True
            try:
                return original(*args, **kwargs)
            finally:
                self._in_backward = False
                self._backwards += 1
                if self._stepped_inside or self._updates_by_hand():
                    self._stepped_inside = False
                    self._count_step()

        return backward

    def _updates_by_hand(self) -> bool:
        """Whether the program updates its weights without an optimizer: a backward pass is then a step."""
        if not self._by_hand and not self.steps and self._backwards == MIN_STEPS:
            kind = torch.optim.Optimizer
            self._by_hand = not any(issubclass(type(value), kind) for value in gc.get_objects())
        return self._by_hand

    def _watched_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if isinstance(scaled, torch.Tensor) and scaled.numel() == 1:
                self._unscaled = {id(scaled): (weakref.ref(scaled), outputs.detach())}
            return scaled

        return scale

    def _without_scale(self, loss: Any) -> Any:
        reference, unscaled = self._unscaled.get(id(loss), (None, None))
        value = unscaled if reference is not None and reference() is loss else loss.detach()
        return value.clone()  # a CUDA graph writes the next one to the same memory

    def _watch_graphs(self) -> None:
        """Count the replay of a CUDA graph as a step if an optimizer was called while it was captured."""
        kind: Any = torch.cuda.CUDAGraph
        begin, end, replay = kind.capture_begin, kind.capture_end, kind.replay
        with_step: weakref.WeakSet[Any] = weakref.WeakSet()

        @functools.wraps(begin)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._capturing, self._captured_step = True, False
            return begin(graph, *args, **kwargs)

        @functools.wraps(end)
        def capture_end(graph: Any) -> Any:
            self._capturing = False
            if self._captured_step:
                with_step.add(graph)
            return end(graph)

        @functools.wraps(replay)
        def replayed(graph: Any) -> Any:
            result = replay(graph)
            if graph in with_step:
                self._count_step()
            return result

        kind.capture_begin, kind.capture_end, kind.replay = capture_begin, capture_end, replayed

    # Fingerprints.

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.steps or self._capturing:
            return
        parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
        with torch.no_grad():
            for weight in parameters:
                self._parameters += weight.numel()
                if self._request.observe:
                    self._weights.append((f"{tuple(weight.shape)} {weight.dtype}", whole_fingerprint(weight.detach())))
                if self._request.perturb:
                    perturb(weight, self._epsilon)

    def _generators(self) -> dict[str, int]:
        states = {"torch": torch.get_rng_state().numpy().tobytes(), "python": repr(random.getstate()).encode()}
        if "numpy" in sys.modules:
            _, keys, *rest = sys.modules["numpy"].random.get_state()
            states["numpy"] = keys.tobytes() + repr(rest).encode()
        if uses_cuda() and not torch.cuda.is_current_stream_capturing():
            states["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
        return {name: short_hash(state) for name, state in states.items()}

    def _watched_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        observer = self

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or observer._in_backward or observer._capturing:
                return original(module, *args, **kwargs)
            if observer._depth == 0 and observer._request.observe:
                observer._see_inputs(module, args, kwargs)
            if observer._epsilon < 2.0**-10:
                observer._see_precision()
            observer._depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                observer._depth -= 1

        return call

    def _see_precision(self) -> None:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                self._epsilon = max(self._epsilon, torch.finfo(torch.get_autocast_dtype(kind)).eps)
        if uses_cuda() and torch.backends.cuda.matmul.allow_tf32:
            self._epsilon = max(self._epsilon, 2.0**-10)

    def _see_inputs(self, module: Any, args: Any, kwargs: Any) -> None:
        """Record fingerprints of the samples that a model is called with: of tensors that are not results of a model."""
        training = torch.is_grad_enabled() and (module.training or not self._mode.get(True, False))
        weight = next(module.parameters(), None)
        if weight is None or self._num_rows[training] >= MAX_ROWS:  # a loss function, or too many
            return
        if weight.is_floating_point():
            self._epsilon = max(self._epsilon, torch.finfo(weight.dtype).eps)
        tensors = [value for value in tensors_of([args, kwargs]) if value.ndim and len(value) and not value.requires_grad]
        tensors = [value for value in tensors if len(value) == len(tensors[0]) and value.layout == torch.strided]
        if not tensors:
            return
        with torch.no_grad():
            self._rows[training].append((row_fingerprints(tensors, rounded=False), row_fingerprints(tensors, rounded=True)))
        self._num_rows[training] += len(tensors[0])
        self._mode.setdefault(training, module.training)  # of the first call: an evaluation may have gradients enabled, too

    # The result.

    def observed(self, error: str | None, *, finished: bool) -> Observed:
        """Return everything that was observed, after the device has finished."""
        request, steps = self._request, self.steps
        waited, spent = self._delay.end() if self._delay is not None else (None, 1)
        if error is None and not steps:
            error = "made no optimizer step in its main process, so there is nothing to compare"
        ends = [(end - request.begin_ns) / 1e9 for end in self._ends]
        on_device = uses_cuda()
        losses = torch.stack([loss.double().cpu().reshape(()) for loss in self._losses]).tolist() if self._losses else []
        return Observed(
            error=error,
            finished=finished,
            losses=[sum(losses[start:end]) for start, end in zip([0, *self._losses_at], self._losses_at, strict=False)]
            if losses
            else [],
            ends=ends,
            middle=self._marks.get(steps // 2, ends[max(0, steps // 2 - 1)]) if ends else 0.0,
            end=self._marks.get(steps, ends[-1]) if ends else 0.0,
            device="cuda" if on_device else "cpu",
            disturbed=None if waited is None else min(1.0, waited / max(1, spent)),  # clocks of two kinds
            host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            device_bytes=torch.cuda.max_memory_reserved() if on_device else 0,
            weights=[f"{shape} {int(digest):x}" for shape, digest in self._weights],
            parameters=self._parameters,
            random=self._random,
            training=self._samples(True),
            evaluation=self._samples(False),
            epoch_samples=self._loaders.epoch_samples,
            epsilon=self._epsilon,
            packages=packages() if request.observe else {},
            modules=installed_modules() if request.observe else [],
            variables=[
                name for name in os.environ if name.startswith(READ_ONCE) and os.environ[name] != self._environment.get(name)
            ],
            code=code_hashes(self._main) if request.observe else {},
        )

    def evaluated(self) -> SeenSamples:
        """Return the samples that models were called with, whether or not gradients were enabled: for an evaluator."""
        seen = [self._samples(training) for training in (True, False)]
        return SeenSamples(exact=[*seen[0].exact, *seen[1].exact], rounded=[*seen[0].rounded, *seen[1].rounded])

    def _samples(self, training: bool) -> SeenSamples:
        rows = self._rows[training]
        if not rows:
            return SeenSamples()
        exact, rounded = (torch.cat([call[kind].cpu() for call in rows]).tolist() for kind in (0, 1))
        per_step = [counts[0 if training else 1] for counts in self._rows_at]
        return SeenSamples(exact=exact, rounded=rounded, per_step=per_step, training_mode=self._mode.get(training))


class LoaderWatch:
    """Sees the samples per epoch of the training `DataLoader`: the one between whose batches steps are made."""

    def __init__(self, observer: Observer) -> None:
        self.epoch_samples: int | None = None
        self.steps_per_epoch: int | None = None
        self._observer = observer
        self._passes: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Watch all loaders."""
        kind: Any = dataloader._BaseDataLoaderIter
        original = kind.__next__

        @functools.wraps(original)
        def following(iterator: Any) -> Any:
            state = self._passes.setdefault(iterator, [self._observer.steps, 0, 0])  # steps before it, batches, rows
            try:
                batch = original(iterator)
            except StopIteration:
                self._see(iterator, state, ended=True)
                raise
            state[1] += 1
            state[2] += num_rows(batch) or 0
            self._see(iterator, state, ended=False)
            return batch

        kind.__next__ = following

    def _see(self, iterator: Any, state: list[int], *, ended: bool) -> None:
        begin, batches, rows = state
        steps = self._observer.steps - begin
        if self.epoch_samples is not None or steps < 1:
            return
        if ended:
            self.epoch_samples, self.steps_per_epoch = rows, max(1, steps)
            return
        sampler = iterator._index_sampler
        with contextlib.suppress(TypeError, AttributeError, NotImplementedError):  # of unknown length
            size, number = sampler.batch_size, len(sampler)
            total = len(sampler.sampler)
            self.epoch_samples = number * size if sampler.drop_last else total
            self.steps_per_epoch = max(1, number * steps // max(1, batches - 1))


def uses_cuda() -> bool:
    """Whether the program has used a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


# ---- what was run ----


def is_users(file: str) -> bool:
    """Whether a source file is the user's: not part of Python, an installed package or stoker."""
    path = os.path.realpath(file)
    foreign = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(stoker.__file__).parent)}
    return path.endswith(".py") and not path.startswith(tuple(foreign)) and not any(part in INSTALLED for part in Path(path).parts)


def code_hashes(main: str) -> dict[str, str]:
    """Return the SHA-256 of each file of the user that was imported or run."""
    files = {main, *(str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values()))}
    own = sorted(file for file in files if file and is_users(file) and Path(file).is_file())
    here = original(str(Path.cwd()))
    return {os.path.relpath(original(file), here): hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in own}


def installed_modules() -> list[str]:
    """Return the names of all modules of installed packages that were imported, in the order of their imports."""
    files = {name: str(getattr(module, "__file__", None) or "") for name, module in list(sys.modules.items())}
    return [name for name, file in files.items() if any(part in INSTALLED for part in Path(file).parts)]


def packages() -> dict[str, str]:
    """Return the versions of the installed packages that the program has imported."""
    names = importlib.metadata.packages_distributions()
    used = {name.partition(".")[0] for name in list(sys.modules)}
    owners = {owner for name in used for owner in names.get(name, ())}
    return {"python": sys.version.split()[0], **{owner: importlib.metadata.version(owner) for owner in sorted(owners)}}
