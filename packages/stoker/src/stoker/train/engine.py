"""The engine makes the work of a setup (eager steps or CUDA graphs, a precision, a fused optimizer or not) and chooses the setup.

Snapshot    all that a step changes, put back bit for bit: setups are measured from one and the same state
Engine      makes, measures and chooses
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
import xxhash
from torch import nn

from stoker._clock import now_ns
from stoker._text import readable_seconds
from stoker.errors import TrainError
from stoker.train import autotune, state_dict
from stoker.train.autotune import Chooser, Setup, Timed, Trial, steps_of_choice, steps_per_round
from stoker.train.distributed import Joint, Replicas, Shards
from stoker.train.graph import Gathering, Graphs
from stoker.train.numerics import Scale, set_matmul_flags, takes_flag
from stoker.train.optimizer import FUSED, LearningRate, is_fused, may_be_fused, set_fused
from stoker.train.ordered_sums import OrderedSums
from stoker.train.settings import Components
from stoker.train.step import EagerStep, Readout, StepWork
from stoker.train.stream import Stream


class Snapshot:
    """Weights, buffers, values that modules keep in attributes, `others`, the optimizer's state and all random numbers.

    `model` may come with further modules that a step changes, such as a loss with buffers.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *others: torch.Tensor | nn.Module) -> None:
        self._optimizer = optimizer
        modules = [model, *(other for other in others if isinstance(other, nn.Module))]
        tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        tensors += [other for other in others if isinstance(other, torch.Tensor)]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._attributes = [(layer, _kept_attributes(layer)) for module in modules for layer in module.modules()]
        self._state = {
            parameter: {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
            for parameter, state in optimizer.state.items()
        }
        self._random = state_dict.capture()

    @torch.no_grad()
    def restore(self, *, for_graph: bool = False) -> None:
        """Put it back. Tensors stay the ones they are; state that an optimizer did not have is gone again.

        A graph knows tensors by their address, so `for_graph` leaves such state there as zeros, which is how the optimizers
        that graphs are made of begin.
        """
        for tensor, kept in self._tensors:
            tensor.copy_(kept)
        for layer, attributes in self._attributes:
            _put_back(layer, attributes)
        for parameter, state in list(self._optimizer.state.items()):
            before = self._state.get(parameter)
            if before is None and not for_graph:
                del self._optimizer.state[parameter]
                continue
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    value.zero_() if before is None else value.copy_(before[name])
                elif before is not None:
                    state[name] = before[name]
        state_dict.restore(self._random)

    def digest(self) -> str:
        """A hash of the present bits of all that a step changes, random numbers apart."""
        hasher = xxhash.xxh3_128()
        weights = [weight for group in self._optimizer.param_groups for weight in group["params"]]
        states = [value for weight in weights for value in self._optimizer.state.get(weight, {}).values()]
        for value in [*(tensor for tensor, _ in self._tensors), *states]:
            if isinstance(value, torch.Tensor):
                hasher.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
            else:
                hasher.update(repr(value).encode())
        return hasher.hexdigest()


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
_Attributes = dict[str, tuple[Any, Any]]
"""Values of attributes by name, and copies of what they held."""


def _kept_attributes(layer: nn.Module) -> _Attributes:
    """What a forward pass may count up, set or fill: numbers, words, tensors, and containers of these."""
    attributes = {name: (value, _copied(value)) for name, value in vars(layer).items() if name not in _MODULE_ATTRIBUTES}
    return {name: both for name, both in attributes.items() if both[1] is not _NOT_COPIED}


def _put_back(layer: nn.Module, attributes: _Attributes) -> None:
    """Give attributes the values that they had. Tensors and containers stay the ones they are, as others may hold them too."""
    now = vars(layer)
    for name in [name for name in _kept_attributes(layer) if name not in attributes]:
        del now[name]  # the forward pass made it
    for name, (value, kept) in attributes.items():
        now[name] = value
        if isinstance(value, torch.Tensor):
            value.detach().copy_(kept)
        elif isinstance(value, list | deque):
            value.clear()
            value.extend(_copied(kept))
        elif isinstance(value, dict | set):
            value.clear()
            value.update(_copied(kept))


_NOT_COPIED = object()


def _copied(value: Any) -> Any:
    """A copy of a value of plain ones and tensors; `_NOT_COPIED` of any other, such as one that holds modules."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
        return value
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        return value.detach().clone()
    if isinstance(value, dict):
        pairs = [(key, _copied(part)) for key, part in value.items()]
        return _NOT_COPIED if any(part is _NOT_COPIED for _, part in pairs) else dict(pairs)
    if isinstance(value, list | tuple | set | frozenset | deque):
        parts = [_copied(part) for part in value]
        if any(part is _NOT_COPIED for part in parts):
            return _NOT_COPIED
        return parts if isinstance(value, list | deque) else tuple(parts) if isinstance(value, tuple) else set(parts)
    return _NOT_COPIED


MEASURED_BATCHES = 4
_SHAKEN_SEED = 0x5EED


class Engine:
    """Makes and measures the work of setups. Closing it gives the optimizer back as the user made it."""

    def __init__(self, parts: Components, stream: Stream, *, total_updates: int | None) -> None:
        settings = parts.settings
        self._parts = parts
        self._settings = settings
        self._stream = stream
        self._total_updates = total_updates
        self._may_be_fused = settings.execution.fused is None and may_be_fused(parts.optimizer)
        self._unfused = [group.get("fused") if not group.get("fused") else None for group in parts.optimizer.param_groups]
        self._was_fused = is_fused(parts.optimizer)
        self._tried: dict[Setup, tuple[EagerStep, StepWork, Readout]] = {}
        self.rate = LearningRate(parts.optimizer)
        self.scale: Scale | None = None
        self.readout = Readout(parts.device, capacity=settings.logging.every)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.rate.restore()
        self._fuse(self._was_fused)
        for name in ("grad_scale", "found_inf"):
            if hasattr(self._parts.optimizer, name):
                delattr(self._parts.optimizer, name)

    def work(self, setup: Setup) -> StepWork:
        """The work of a run in this setup."""
        self._tried.clear()
        self.scale = Scale(self._parts.device) if setup.precision == "fp16" else None
        joint: Joint | None = None  # what steps do together with other ranks
        ranks, accumulated = self._parts.ranks, self._settings.grad_accum_steps
        if ranks.shards:
            joint = Shards(ranks, self._parts.loss)
        elif ranks.is_ordered:
            joint = OrderedSums(ranks, self._model(setup), self._parts.loss)
        elif ranks.together:
            joint = Replicas(ranks, self._model(setup), self._parts.loss, grad_accum_steps=accumulated)
        step, work, self.readout = self._make(setup, self.scale, joint=joint)
        if setup.graph and self._stream.can_capture:
            with contextlib.suppress(ValueError):  # where the feed says that it cannot be captured, batches are copied
                return Gathering(
                    step, self.readout, self._stream.batches, grad_accum_steps=accumulated, preserve=partial(self._preserve, step)
                )
        return work

    def _make(self, setup: Setup, scale: Scale | None, *, joint: Joint | None = None) -> tuple[EagerStep, StepWork, Readout]:
        parts, settings = self._parts, self._settings
        self._activate(setup)
        readout = Readout(parts.device, capacity=max(settings.logging.every, 64))
        step = EagerStep(
            self._model(setup),
            parts.loss if joint is None else joint.loss,
            parts.optimizer,
            readout,
            device=parts.device,
            precision=setup.precision,
            weighted=settings.grad_accum_steps > 1 or joint is not None or parts.micro_batches is not None,
            max_grad_norm=settings.max_grad_norm,
            ema=parts.ema,
            scale=scale,
            skips=settings.guard == "skip",
            joint=joint,
        )
        if not setup.graph:
            return step, StepWork(step, readout), readout
        refusal = self._refuses_graph(step)
        if refusal is not None:
            raise TrainError(f"the step cannot be a graph: {refusal}.")
        return (
            step,
            Graphs(step, readout, grad_accum_steps=settings.grad_accum_steps, preserve=partial(self._preserve, step)),
            readout,
        )

    def _activate(self, setup: Setup) -> None:
        """Set what is set on the optimizer and for the whole process."""
        self.rate.restore()
        self._fuse(setup.fused)
        # A graph reads the learning rate from a float32 tensor. A fused kernel computes with a number of Python in double, so
        # eager steps read the tensor too: both then give the same bits.
        if setup.graph or (setup.fused and self._parts.device.type == "cuda"):
            self.rate.to_device(self._parts.device)
        set_matmul_flags(setup.precision)

    def _fuse(self, fused: bool) -> None:
        if fused != is_fused(self._parts.optimizer):
            set_fused(self._parts.optimizer, fused, otherwise=self._unfused)

    def _model(self, setup: Setup) -> nn.Module:
        return self._parts.compiled if setup.compile else self._parts.model

    def _refuses_graph(self, step: EagerStep) -> str | None:
        """Why the step cannot be a graph; None where nothing speaks against it."""
        optimizer = self._parts.optimizer
        if self._parts.device.type != "cuda":
            return "there is no GPU"
        if not takes_flag(optimizer):
            return f"{type(optimizer).__name__} is not fused, so the host has to check each update. Pass fused=True"
        if any(group.get("dampening") for group in optimizer.param_groups):
            return "SGD with dampening has a first step unlike the others"
        if step.guard.statistics.changing and self._settings.grad_accum_steps > 1:
            return "the model has running statistics, and several micro-batches make an update"
        return None

    def _preserve(self, step: EagerStep) -> Callable[[], None]:
        """Remember all that a step changes; returns what puts it back."""
        snapshot, restore_step = Snapshot(self._parts.model, self._parts.optimizer), step.preserve()

        def restore() -> None:
            snapshot.restore(for_graph=True)
            restore_step()

        return restore

    def baseline(self) -> Setup:
        """The setup that the user's options ask for, without anything that is measured."""
        parts, settings = self._parts, self._settings
        fused = is_fused(parts.optimizer) if settings.execution.fused is None else settings.execution.fused
        if settings.execution.graph is True and settings.execution.measured:
            fused = fused or self._may_be_fused  # a graph needs it, and the user has left it open
        return Setup(
            precision="fp32" if settings.precision == "auto" else settings.precision,
            fused=fused,
            graph=settings.execution.graph is True,
            compile=settings.execution.compile is True,
        )

    def choose(self) -> tuple[Setup, tuple[Trial, ...]]:
        """The setup of a new run: the baseline, or what is faster and allowed to replace it."""
        parts, settings, setup = self._parts, self._settings, self.baseline()
        candidates = self._candidates(setup)
        noted: tuple[str, str] | None = None
        if parts.ranks.shards and settings.execution.measured:
            noted = "choice", "not measured: the weights are on several ranks"
        elif not candidates:
            if not self._may_be_graph or not self._may_be_fused:
                return setup, ()
            noted = "graph", f"{type(parts.optimizer).__name__} is not fused, so the host has to check each update (fused=True)"
        elif self._total_updates is not None and self._total_updates < autotune.WORTH_MEASURING:
            noted = "choice", f"not measured: {self._total_updates:,} updates are over before it has paid off"
        if noted is not None:
            trial = Trial(name=noted[0], chosen=False, reason=noted[1])
            parts.say(str(trial))
            return setup, (trial,)
        batches = self._stream.peek(MEASURED_BATCHES * settings.grad_accum_steps)
        others = [*parts.loss_modules, *(parts.ema.tensors() if parts.ema is not None else ())]
        snapshot = Snapshot(parts.model, parts.optimizer, *others)
        was_training = parts.model.training
        parts.model.train()

        def run(setup: Setup, num_steps: int, *, shaken: bool = False, bits: bool = False) -> Timed:
            return self._measure(setup, num_steps, batches, snapshot, shaken=shaken, bits=bits)

        chooser = Chooser(run=run)
        try:
            setup = self._improve(chooser, setup, candidates)
        finally:
            parts.model.train(was_training)
            self._tried.clear()
            self._activate(setup)
            # A fresh optimizer has no state: what a graph will know by its address is made when it is captured.
            snapshot.restore(for_graph=parts.device.type == "cuda" and setup.graph)
            parts.optimizer.zero_grad(set_to_none=True)
        return setup, tuple(chooser.trials)

    @property
    def _may_be_graph(self) -> bool:
        parts = self._parts
        return self._settings.execution.graph == "auto" and parts.device.type == "cuda" and not parts.ranks.together

    def _candidates(self, setup: Setup) -> list[str]:
        """What may replace parts of the baseline, by name."""
        settings = self._settings
        graph = ["graph"] if self._may_be_graph else []
        if not settings.execution.measured:
            return graph if setup.fused else []
        fused = ["fused"] if self._may_be_fused and not setup.fused else []
        precision = (["tf32"] if self._parts.device.type == "cuda" else []) + ["bf16"] if settings.precision == "auto" else []
        return [*fused, *graph, *precision, *(["compile"] if settings.execution.compile == "auto" else [])]

    def _improve(self, chooser: Chooser, setup: Setup, names: list[str]) -> Setup:
        """Take what is faster, one candidate after the other."""
        exact = not self._settings.execution.measured
        if not exact and self._parts.device.type != "cuda":
            self._parts.say(str(chooser.note("graph", "there is no GPU")))
        seconds = chooser.run(setup, 1).seconds
        num_steps = steps_per_round(seconds, total_updates=self._total_updates, num_candidates=len(names), exact=exact)
        if num_steps < 1:
            reason = f"not measured: {self._total_updates:,} updates are over before it has paid off"
            self._parts.say(str(chooser.note("choice", reason)))
            return setup
        self._say_how_long(seconds, num_steps, [name for name in names if name != "compile"], exact=exact)
        for name in names:
            refusal = self._refusal(name, setup, seconds)
            if refusal is None:
                if name == "compile":
                    self._parts.say("compiling the model (this may take minutes) ...")
                setup = chooser.better(name, setup, self._with(name, setup), num_steps=num_steps, exact=exact)
                self._parts.say(str(chooser.trials[-1]))
            else:
                self._parts.say(str(chooser.note(name, refusal)))
        return setup

    def _with(self, name: str, setup: Setup) -> Setup:
        if name in ("tf32", "bf16"):
            return replace(setup, precision="tf32" if name == "tf32" else "bf16")
        if name == "graph":  # where it is not fused yet, the user has left that open
            return replace(setup, graph=True, fused=True)
        return replace(setup, fused=True) if name == "fused" else replace(setup, compile=True)

    def _refusal(self, name: str, setup: Setup, seconds: float) -> str | None:
        """Why a candidate is not even tried."""
        if name == "graph" and not (setup.fused or self._may_be_fused):
            return f"{type(self._parts.optimizer).__name__} is not fused, so the host has to check each update"
        if name == "compile":
            expected = seconds * self._total_updates if self._total_updates is not None else None
            if expected is None or expected < autotune.WORTH_COMPILING_SECONDS:
                length = "of unknown length" if expected is None else f"over in {readable_seconds(expected)}"
                return f"not tried: the run is {length}, and compiling takes minutes"
        return None

    def _say_how_long(self, seconds: float, num_steps: int, names: list[str], *, exact: bool = False) -> None:
        if names:
            expected = len(names) * steps_of_choice(num_steps, exact=exact) * seconds
            self._parts.say(f"measuring setups (at most about {readable_seconds(max(1, round(expected)))}) ...")

    def _measure(self, setup: Setup, num_steps: int, batches: list[Any], snapshot: Snapshot, *, shaken: bool, bits: bool) -> Timed:
        parts = self._parts
        is_new = setup not in self._tried
        if is_new:
            self._tried[setup] = self._make(setup, Scale(parts.device) if setup.precision == "fp16" else None)
        step, work, readout = self._tried[setup]
        self._activate(setup)
        for_graph = parts.device.type == "cuda" and isinstance(parts.optimizer, FUSED)
        for is_warm_up in (True, False) if is_new else (False,):
            snapshot.restore(for_graph=for_graph)
            step.guard.bind()
            step.discard()
            readout.begin(0)
            if shaken:
                torch.manual_seed(_SHAKEN_SEED)
            _synchronize(parts.device)
            begin = now_ns()
            self._run(work, batches, autotune.WARM_UP if is_warm_up else num_steps)
            _synchronize(parts.device)
            seconds = (now_ns() - begin) / 1e9 / num_steps
        readout.take()
        losses = [loss for window in readout.ready(wait=True) for loss in window.column("loss")]
        return Timed(seconds, losses[:num_steps], snapshot.digest() if bits else "")

    def _run(self, work: StepWork, batches: list[Any], num_steps: int) -> None:
        entries = islice(cycle(batches), num_steps * self._settings.grad_accum_steps)
        for number, entry in enumerate(entries, 1):
            work.micro(entry)
            if number % self._settings.grad_accum_steps == 0:
                work.update()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
