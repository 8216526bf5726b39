"""Runs a training program in a sandbox, and observes it from outside: hooks in torch, and no change of the program.

`run_program` starts one run in a fresh process and waits for what was `Observed`. In that process, an `Observer` records the time of each
optimizer step and the loss of each backward pass, without waiting for the device. A run that is compared by its results also records
fingerprints of the initial weights, of the samples that enter the model and of the states of the random number generators. Runs that are
timed do not, so the cost of fingerprints is in no time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import multiprocessing
import os
import random
import resource
import runpy
import signal
import socket
import subprocess
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

import msgspec

import stoker
from stoker import _disk
from stoker._clock import RunQueueDelay, now_ns
from stoker._lazy import import_first
from stoker.errors import TrainError
from stoker.sandbox import Sandbox, enter, mirrored, original, refusal

POLL_SECONDS = 0.5
SHOWN_LINES = 20  # last lines of stderr that are shown of a program that fails
MIN_STEPS, USUAL_STEPS, MOST_STEPS = 20, 200, 2000
"""Steps of the first run, which sets the number for all: at least, without a known epoch, and to reach the second epoch."""
INTO_NEXT_EPOCH = 1.3  # epochs after which a repetition of the first one has been seen
MAX_ROWS = 1 << 20  # samples whose fingerprints are kept
MAX_COLUMNS = 4096  # values of a sample that its fingerprint reads; of a larger sample, this many at equal distances
INSTALLED = ("site-packages", "dist-packages")
_exit = os._exit


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one version of a program."""

    program: str  # a path, or the name of a module with `module=True`
    module: bool = False
    arguments: list[str] = []
    files: str | None = None  # a folder with files that replace those of the user, by their absolute paths
    removed: list[str] = []  # files of the user that this version does not have
    steps: int | None = None  # optimizer steps after which the run ends
    seconds: float | None = None  # time after the first step at which a run without `steps` ends
    whole: bool = False  # whether it runs to its own end
    seed: int = 0  # added to all seeds
    observe: bool = False  # whether fingerprints are recorded
    perturb: bool = False  # whether the initial weights are changed by one rounding error
    begin_ns: int = 0


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Fingerprints of the samples that entered the model, in their order."""

    exact: list[int] = []
    rounded: list[int] = []  # of the values in bfloat16: equal where only rounding differs
    per_step: list[int] = []  # samples seen by the end of each step
    training_mode: bool | None = None  # of the model, in the first call


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed in a run."""

    error: str | None = None
    losses: list[float] = []  # of each step, summed over its backward passes
    ends: list[float] = []  # the end of each step in seconds since the process was started
    middle: float = 0.0  # the end of the first half of the steps, when the device had finished them
    end: float = 0.0  # the same for all steps
    finished: bool = False  # whether the program came to its own end
    output: str = ""
    device: str = "cpu"
    disturbed: float | None = None  # share of the time in which other programs had the cores
    host_bytes: int = 0
    device_bytes: int = 0
    weights: list[str] = []  # shape, dtype and fingerprint of each tensor that the optimizer updates, before the first step
    parameters: int = 0
    random: dict[str, list[int]] = {}  # the state of each generator after each step
    training: Samples = Samples()
    evaluation: Samples = Samples()
    epoch_samples: int | None = None
    epsilon: float = 2.0**-23  # of the least precise type that the model computed in
    packages: dict[str, str] = {}
    code: dict[str, str] = {}  # SHA-256 of the user's files that were run

    @property
    def step_seconds(self) -> float:
        """The mean time of a step in the second half of the run: warm-up and compilation are in the first."""
        steps = len(self.ends)
        return (self.end - self.middle) / max(1, steps - steps // 2)


# ---- in the process that compares ----


def run_program(
    request: RunRequest, sandbox: Sandbox, *, python: str = sys.executable, environment: Mapping[str, str] | None = None,
    quiet: bool = True, time_limit: float | None = None,
) -> Observed:  # fmt: skip
    """Run a program in a fresh process. Raises `TrainError` with the reason if it fails."""
    request = msgspec.structs.replace(request, begin_ns=now_ns())
    with _memory_file("stdout") as stdout, _memory_file("stderr") as stderr:
        observed = _wait(*_start(request, sandbox, python, environment or {}, stdout.fileno(), stderr.fileno()), time_limit)
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if not quiet and request.observe:
        sys.stderr.write(texts[0] + texts[1])
    if isinstance(observed, Observed) and observed.error is None:
        return msgspec.structs.replace(observed, output=texts[0])
    reason = observed if isinstance(observed, str) else observed.error
    last = "\n".join(texts[1].splitlines()[-SHOWN_LINES:])
    raise TrainError(f"{request.program} {reason}" + (f"\n{last}" if last and isinstance(observed, str) else ""))


def _memory_file(name: str) -> Any:
    return os.fdopen(os.memfd_create(name), "w+b")


def _start(
    request: RunRequest, sandbox: Sandbox, python: str, environment: Mapping[str, str], stdout: int, stderr: int
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start the process, and wait until it is in its sandbox."""
    # Modules of the current folder must not hide those that stoker imports; the program gets its own path later.
    code = "import sys; sys.path[: not sys.flags.safe_path] = []; from stoker.compare.child import main; main(sys.argv[1:])"
    # As for `diagnose`: the same order of sets of strings each time.
    environ = {"PYTHONHASHSEED": "0", **os.environ, **environment}
    reading, writing = Pipe(duplex=False)
    ours, theirs = socket.socketpair()
    with ours, writing:
        with theirs:
            arguments = [str(writing.fileno()), msgspec.json.encode(request).decode(), sandbox.plan(theirs.fileno())]
            child = subprocess.Popen(
                [python, "-c", code, *arguments],
                pass_fds=[writing.fileno(), theirs.fileno()], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environ,
            )  # fmt: skip
        try:
            sandbox.wait_until_entered(ours)
        except BaseException:
            child.kill()
            child.wait()
            reading.close()
            raise
    return child, reading


def _wait(child: subprocess.Popen[bytes], reading: Connection, time_limit: float | None) -> Observed | str:
    """Wait for the answer. Returns how the process ended if there is none."""
    until = None if time_limit is None else now_ns() + int(time_limit * 1e9)
    try:
        with reading:
            while not reading.poll(POLL_SECONDS):
                if child.poll() is not None and not reading.poll():
                    return _how(child.returncode)
                if until is not None and now_ns() > until:
                    return f"was stopped after its time limit of {time_limit:,.0f} s"
            return msgspec.msgpack.decode(reading.recv_bytes(), type=Observed)
    except EOFError:
        return _how(child.wait())
    finally:
        if child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL_SECONDS)  # it has answered and ends
            child.kill()
        child.wait()


def _how(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


# ---- in the process of the program ----


class Observer:
    """Records a run by hooks in torch. `done` is called when the run has made its steps."""

    def __init__(self, request: RunRequest, done: Callable[[], None]) -> None:
        import torch

        self._torch, self._request, self._done = torch, request, done
        self.steps = 0
        self._ends: list[int] = []
        self._losses: list[Any] = []
        self._losses_at: list[int] = []  # number of losses by the end of each step
        self._unscaled: dict[int, tuple[Any, Any]] = {}  # by the id of a scaled loss: a reference to it, and the loss itself
        self._in_backward = self._stepped_inside = self._by_hand = self._capturing = self._captured_step = False
        self._backwards = 0
        self._marks: dict[int, float] = {}  # by a number of steps: when the device had finished them
        self._delay: RunQueueDelay | None = None
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

    def install(self) -> None:
        """Install the hooks."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        torch = self._torch
        register_optimizer_step_post_hook(self._after_step)
        torch.autograd.backward = self._watched_backward(torch.autograd.backward)
        scaler: Any = torch.amp.GradScaler
        scaler.scale = self._watched_scale(scaler.scale)
        self._watch_graphs()
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
        if steps < MIN_STEPS:
            return False
        epoch = self._loaders.steps_per_epoch
        wanted = USUAL_STEPS if epoch is None else max(USUAL_STEPS, int(INTO_NEXT_EPOCH * epoch))
        return steps >= min(wanted, MOST_STEPS) or (request.seconds is not None and seconds >= request.seconds)

    def _mark(self) -> None:
        """Wait for the device: twice in a run, so that the time of a half includes its work."""
        if self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()
        self._marks[self.steps] = (now_ns() - self._request.begin_ns) / 1e9

    def _watched_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._in_backward:
                return original(*args, **kwargs)
            loss = args[0] if args else kwargs.get("tensors")
            if isinstance(loss, self._torch.Tensor) and loss.numel() == 1 and not self._capturing:
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
            import gc

            kind = self._torch.optim.Optimizer
            self._by_hand = not any(issubclass(type(value), kind) for value in gc.get_objects())
        return self._by_hand

    def _watched_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if isinstance(scaled, self._torch.Tensor) and scaled.numel() == 1:
                self._unscaled = {id(scaled): (weakref.ref(scaled), outputs.detach())}
            return scaled

        return scale

    def _without_scale(self, loss: Any) -> Any:
        reference, unscaled = self._unscaled.get(id(loss), (None, None))
        value = unscaled if reference is not None and reference() is loss else loss.detach()
        return value.reshape(()).clone()  # a CUDA graph writes the next one to the same memory

    def _watch_graphs(self) -> None:
        """Count the replay of a CUDA graph as a step if an optimizer was called while it was captured."""
        kind: Any = self._torch.cuda.CUDAGraph
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
        with self._torch.no_grad():
            for weight in parameters:
                self._parameters += weight.numel()
                if self._request.observe:
                    self._weights.append((f"{tuple(weight.shape)} {weight.dtype}", whole_fingerprint(weight.detach())))
                if self._request.perturb:
                    perturb(weight, self._epsilon)

    def _generators(self) -> dict[str, int]:
        torch = self._torch
        states = {"torch": torch.get_rng_state().numpy().tobytes(), "python": repr(random.getstate()).encode()}
        if "numpy" in sys.modules:
            _, keys, *rest = sys.modules["numpy"].random.get_state()
            states["numpy"] = keys.tobytes() + repr(rest).encode()
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            states["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
        return {name: _short_hash(state) for name, state in states.items()}

    def _watched_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        observer, torch = self, self._torch

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
            if self._torch.is_autocast_enabled(kind):
                self._epsilon = max(self._epsilon, self._torch.finfo(self._torch.get_autocast_dtype(kind)).eps)
        if self._torch.cuda.is_initialized() and self._torch.backends.cuda.matmul.allow_tf32:
            self._epsilon = max(self._epsilon, 2.0**-10)

    def _see_inputs(self, module: Any, args: Any, kwargs: Any) -> None:
        """Record fingerprints of the samples that a model is called with: of tensors that are not results of a model."""
        from stoker._batch import tensors_of

        training = self._torch.is_grad_enabled() and (module.training or not self._mode.get(True, False))
        weight = next(module.parameters(), None)
        if weight is None or self._num_rows[training] >= MAX_ROWS:  # a loss function, or too many
            return
        if weight.is_floating_point():
            self._epsilon = max(self._epsilon, self._torch.finfo(weight.dtype).eps)
        tensors = [value for value in tensors_of([args, kwargs]) if value.ndim and len(value) and not value.requires_grad]
        tensors = [value for value in tensors if len(value) == len(tensors[0]) and value.layout == self._torch.strided]
        if not tensors:
            return
        with self._torch.no_grad():
            self._rows[training].append((row_fingerprints(tensors, rounded=False), row_fingerprints(tensors, rounded=True)))
        self._num_rows[training] += len(tensors[0])
        self._mode.setdefault(training, module.training)  # of the first call: an evaluation may have gradients enabled, too

    # The result.

    def observed(self, error: str | None, *, finished: bool) -> Observed:
        """Return everything that was observed, after the device has finished."""
        torch, request, steps = self._torch, self._request, self.steps
        waited, spent = self._delay.end() if self._delay is not None else (None, 1)
        if error is None and not steps:
            error = "made no optimizer step in its main process, so there is nothing to compare"
        ends = [(end - request.begin_ns) / 1e9 for end in self._ends]
        on_device = torch.cuda.is_initialized()
        losses = torch.stack([loss.double().cpu() for loss in self._losses]).tolist() if self._losses else []
        return Observed(
            error=error,
            finished=finished,
            losses=[sum(losses[start:end]) for start, end in zip([0, *self._losses_at], self._losses_at, strict=False)] if losses else [],
            ends=ends,
            middle=self._marks.get(steps // 2, ends[max(0, steps // 2 - 1)]) if ends else 0.0,
            end=self._marks.get(steps, ends[-1]) if ends else 0.0,
            device="cuda" if on_device else "cpu",
            disturbed=None if waited is None else waited / max(1, spent),
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
            code=code_hashes() if request.observe else {},
        )

    def _samples(self, training: bool) -> Samples:
        rows = self._rows[training]
        if not rows:
            return Samples()
        exact, rounded = (self._torch.cat([call[kind].cpu() for call in rows]).tolist() for kind in (0, 1))
        per_step = [counts[0 if training else 1] for counts in self._rows_at]
        return Samples(exact=exact, rounded=rounded, per_step=per_step, training_mode=self._mode.get(training))


class LoaderWatch:
    """Sees how many samples an epoch of the training `DataLoader` has: the one between whose batches steps are made."""

    def __init__(self, observer: Observer) -> None:
        self.epoch_samples: int | None = None
        self.steps_per_epoch: int | None = None
        self._observer = observer
        self._passes: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Watch all loaders."""
        from torch.utils.data import dataloader

        from stoker._batch import num_rows

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


# ---- fingerprints: integers that are computed on the device, without waiting for it ----


def _words(value: Any, *, rounded: bool) -> Any:
    """The values of a tensor as integers, a row per sample."""
    import torch

    if value.is_complex():
        value = torch.view_as_real(value)
    value = value.detach().reshape(len(value), -1)
    if value.shape[1] > MAX_COLUMNS:
        value = value[:, :: -(-value.shape[1] // MAX_COLUMNS)]
    if value.is_floating_point():
        value = value.to(torch.bfloat16) if rounded else value
        value = value.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()])
    return value.to(torch.int64)


def _mix(value: Any) -> Any:
    """The finalizer of MurmurHash3 on int64, whose multiplication wraps around."""
    value = (value ^ (value >> 33)) * -49064778989728563
    value = (value ^ (value >> 29)) * -4265267296055464877
    return value ^ (value >> 32)


def row_fingerprints(tensors: Sequence[Any], *, rounded: bool) -> Any:
    """Return an integer per sample, for tensors with as many rows."""
    import torch

    total = torch.zeros(len(tensors[0]), dtype=torch.int64, device=tensors[0].device)
    for number, value in enumerate(tensors):
        words = _words(value, rounded=rounded)
        factors = _mix(torch.arange(1, words.shape[1] + 1, device=words.device) + 1_000_003 * (number + 1)) | 1
        total = total + (_mix(words + number) * factors).sum(1).to(total.device)
    return _mix(total)


def whole_fingerprint(value: Any) -> Any:
    """Return an integer for all values of a tensor."""
    import torch

    rows = value.reshape(-1, value.shape[-1]) if value.ndim > 1 else value.reshape(-1, 1)
    if not len(rows):
        return torch.zeros((), dtype=torch.int64)
    words = row_fingerprints([rows], rounded=False)
    return (words * (_mix(torch.arange(1, len(words) + 1, device=words.device)) | 1)).sum()


def perturb(weight: Any, epsilon: float) -> None:
    """Change each value by one rounding error, up or down, without drawing from the program's random numbers."""
    import torch

    if weight.is_floating_point() and weight.numel():
        size = max(epsilon, torch.finfo(weight.dtype).eps)
        generator = torch.Generator().manual_seed(weight.numel())
        signs = torch.randint(0, 2, weight.shape, generator=generator, dtype=torch.int8).to(weight.device)
        weight.mul_(1 + size * (2 * signs.to(weight.dtype) - 1))


def _short_hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "little")


# ---- the program ----


def write_version(request: RunRequest) -> None:
    """Replace files of the user by those of this version. The sandbox has been entered: only this process sees that."""
    for path in request.removed:
        if os.path.lexists(mirrored(path)):
            _disk.disk.unlink(Path(mirrored(path)))
    if request.files is None:
        return
    root = Path(request.files)
    for source in sorted(path for path in root.rglob("*") if path.is_file()):
        path = f"/{source.relative_to(root)}"
        target = Path(mirrored(path) if os.path.lexists(mirrored(path)) else f"{mirrored(os.path.dirname(path))}/{source.name}")
        _disk.make_folder(target.parent)
        _disk.write_file(target, source.read_bytes(), durable=False)


def is_users(file: str) -> bool:
    """Whether a source file is the user's: not part of Python, an installed package or stoker."""
    path = os.path.realpath(file)
    foreign = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(stoker.__file__).parent)}
    return path.endswith(".py") and not path.startswith(tuple(foreign)) and not any(part in INSTALLED for part in Path(path).parts)


def code_hashes() -> dict[str, str]:
    """Return the SHA-256 of each file of the user that was imported or run."""
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    own = sorted(file for file in files if file and is_users(file) and os.path.isfile(file))
    here = original(os.getcwd())
    return {os.path.relpath(original(file), here): hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in own}


def packages() -> dict[str, str]:
    """Return the versions of the installed packages that the program has imported."""
    names = importlib.metadata.packages_distributions()
    used = {name.partition(".")[0] for name in list(sys.modules)}
    owners = {owner for name in used for owner in names.get(name, ())}
    return {"python": sys.version.split()[0], **{owner: importlib.metadata.version(owner) for owner in sorted(owners)}}


def main(arguments: list[str]) -> NoReturn:
    """Enter the sandbox, and run the request in the command line arguments."""
    connection, request = Connection(int(arguments[0]), readable=False), msgspec.json.decode(arguments[1], type=RunRequest)
    enter(arguments[2])
    write_version(request)
    pid = os.getpid()

    def leave(error: str | None, *, finished: bool) -> NoReturn:
        """Send what was observed, and end this process: nothing else of the program runs."""
        connection.send_bytes(msgspec.msgpack.encode(observer.observed(error, finished=finished)))
        for worker in multiprocessing.active_children():
            worker.terminate()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError, OSError):  # the program has closed it
                stream.flush()
        _exit(0)

    def done() -> None:
        if os.getpid() == pid:  # not in a worker of a loader
            leave(None, finished=False)

    from stoker.compare.seeding import set_seeds  # torch may be imported from here on: it starts threads

    observer = Observer(request, done)
    set_seeds(request.seed)
    observer.install()
    error: str | None = None
    try:
        sys.argv = [request.program, *request.arguments]
        if request.module:
            import_first(Path.cwd())
            runpy.run_module(request.program, run_name="__main__", alter_sys=True)
        else:
            path = mirrored(str(Path(request.program).absolute()))
            sys.argv[0] = path
            import_first(Path(path).resolve().parent)
            runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        error = None if end.code in (None, 0) else f"ended with exit code {end.code!r}"
    except KeyboardInterrupt:
        error = "was interrupted"
    except BaseException as failure:
        traceback.print_exc()
        error = _describe(failure)
    if os.getpid() != pid:
        raise SystemExit(error is not None)
    leave(error, finished=True)


def _describe(failure: BaseException) -> str:
    """An error of the program with the user's line that raised it."""
    lines = [frame for frame in traceback.extract_tb(failure.__traceback__) if is_users(frame.filename)]
    place = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno})" if lines else ""
    message = (str(failure).strip().splitlines() or ["(no message)"])[0]
    return f"raised {type(failure).__name__}{place}: {message}{refusal(failure)}"
