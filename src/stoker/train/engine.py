"""The engine: makes the work of a setup (eager steps or graphs, a precision, an implementation of the optimizer), and finds the
setup by measuring, from one and the same state, which is there again afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stoker.clock import now_ns
from stoker.errors import TrainError
from stoker.train.choice import WORTH_MEASURING, Chooser, Setup, Timed, Trial
from stoker.train.graph import Eager, Gathering, Graphs, Work
from stoker.train.optimizer import FUSED, LearningRate, may_be_fused, set_fused
from stoker.train.precision import Precision, Scale, set_matmul_flags
from stoker.train.readout import Readout
from stoker.train.replicas import Replicas
from stoker.train.shards import Shards
from stoker.train.snapshot import Snapshot
from stoker.train.step import Step, takes_flag

if TYPE_CHECKING:
    from stoker.train.stream import Stream
    from stoker.train.trainer import Trainer

MEASURED_BATCHES = 4
_SHAKEN_SEED = 0x5EED


class Engine:
    """Makes and measures work. Closing it gives the optimizer back as the user made it."""

    def __init__(self, trainer: Trainer, stream: Stream, *, total_updates: int | None) -> None:
        self._trainer = trainer
        self._stream = stream
        self._total_updates = total_updates
        self._may_be_fused = may_be_fused(trainer.optimizer)
        self._tried: dict[Setup, tuple[Step, Work, Readout]] = {}
        self.rate = LearningRate(trainer.optimizer)
        self.scale: Scale | None = None
        self.readout = Readout(trainer.device, capacity=trainer.log_every)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.rate.restore()
        for name in ("grad_scale", "found_inf"):
            if hasattr(self._trainer.optimizer, name):
                delattr(self._trainer.optimizer, name)

    def work(self, setup: Setup) -> Work:
        """The work of a training in this setup."""
        self._tried.clear()
        self.scale = Scale(self._trainer.device) if setup.precision == "fp16" else None
        step, work, self.readout = self._make(setup, self.scale, joint=self._join(setup))
        if setup.graph and hasattr(self._stream.batches, "captured"):
            with contextlib.suppress(ValueError):  # where the feed says that it cannot be captured, batches are copied
                return Gathering(
                    step, self.readout, self._stream.batches, accumulate=self._trainer.accumulate, preserve=self._preserve(step)
                )
        return work

    def _join(self, setup: Setup) -> Replicas | Shards | None:
        """What steps do together with other ranks."""
        trainer = self._trainer
        if not trainer.ranks.together:
            return None
        if trainer.ranks.shards:
            return Shards(trainer.ranks, trainer.loss)
        return Replicas(trainer.ranks, self._model(setup), trainer.loss, accumulate=trainer.accumulate)

    def _make(self, setup: Setup, scale: Scale | None, *, joint: Replicas | Shards | None = None) -> tuple[Step, Work, Readout]:
        trainer = self._trainer
        self._activate(setup)
        readout = Readout(trainer.device, capacity=max(trainer.log_every, 64))
        step = Step(
            self._model(setup),
            trainer.loss if joint is None else joint.loss,
            trainer.optimizer,
            readout,
            device=trainer.device,
            precision=setup.precision,
            weighted=trainer.accumulate > 1 or joint is not None,
            clip=trainer.clip,
            ema=trainer.ema,
            scale=scale,
            skips=trainer.guard == "skip",
            joint=joint,
        )
        if not setup.graph:
            return step, Eager(step, readout), readout
        refusal = self._refuses_graph(step)
        if refusal is not None:
            raise TrainError(f"the step cannot be a graph: {refusal}.")
        return step, Graphs(step, readout, accumulate=trainer.accumulate, preserve=self._preserve(step)), readout

    def _activate(self, setup: Setup) -> None:
        """Set what is set on the optimizer and for the whole process."""
        if self._may_be_fused:
            set_fused(self._trainer.optimizer, setup.fused)
        self.rate.restore()
        if setup.graph:
            self.rate.to_device(self._trainer.device)
        set_matmul_flags(setup.precision)

    def _model(self, setup: Setup) -> nn.Module:
        return self._trainer.compiled if setup.compile else self._trainer.model

    def _refuses_graph(self, step: Step) -> str | None:
        """Why the step cannot be a graph; None where nothing speaks against it."""
        optimizer = self._trainer.optimizer
        if self._trainer.device.type != "cuda":
            return "there is no GPU"
        if not takes_flag(optimizer):
            return f"{type(optimizer).__name__} has no fused implementation, so the host has to look before each update"
        if any(group.get("dampening") for group in optimizer.param_groups):
            return "SGD with dampening begins unlike it goes on"
        if step.has_statistics and self._trainer.accumulate > 1:
            return "the model has running statistics, and several micro-batches make an update"
        return None

    def _preserve(self, step: Step) -> Callable[[], Callable[[], None]]:
        def preserve() -> Callable[[], None]:
            snapshot, restore_step = Snapshot(self._trainer.model, self._trainer.optimizer), step.preserve()

            def restore() -> None:
                snapshot.restore(for_graph=True)
                restore_step()

            return restore

        return preserve

    def choose(self) -> tuple[Setup, tuple[Trial, ...]]:
        """The fastest setup with the same losses, as far as the user has left it open."""
        trainer = self._trainer
        fixed: Precision = "fp32" if trainer.precision == "auto" else trainer.precision  # type: ignore[assignment]
        fused = all(group.get("fused") for group in trainer.optimizer.param_groups)
        setup = Setup(precision=fixed, fused=fused, graph=trainer.graph is True, compile=trainer.compile is True)
        if setup.graph and self._may_be_fused:
            setup = replace(setup, fused=True)
        if trainer.ranks.shards and self._is_open():
            return setup, (Trial(name="choice", chosen=False, reason="not measured: the weights are on several ranks"),)
        if not self._is_open():
            return setup, ()
        if self._total_updates is not None and self._total_updates < WORTH_MEASURING:
            reason = f"not measured: {self._total_updates:,} updates are over before it has paid off"
            if self._may_be_fused and trainer.device.type == "cuda":
                setup = replace(setup, fused=True)  # the guard needs no wait with it
            return setup, (Trial(name="choice", chosen=False, reason=reason),)
        batches = self._stream.peek(MEASURED_BATCHES * trainer.accumulate)
        snapshot = Snapshot(trainer.model, trainer.optimizer, *(trainer.ema.tensors() if trainer.ema is not None else ()))
        on_gpu = trainer.device.type == "cuda"

        def run(setup: Setup, num_steps: int, *, shaken: bool = False) -> Timed:
            return self._measure(setup, num_steps, batches, snapshot, shaken=shaken)

        chooser = Chooser(run=run, total_updates=self._total_updates)
        was_training = trainer.model.training
        trainer.model.train()
        try:
            setup = self._improve(chooser, setup)
        finally:
            trainer.model.train(was_training)
            self._tried.clear()
            self._activate(setup)
            # A fresh optimizer has no state: what a graph will know by its address is made when it is captured.
            snapshot.restore(for_graph=on_gpu and setup.graph)
            trainer.optimizer.zero_grad(set_to_none=True)
        return setup, tuple(chooser.trials)

    def _is_open(self) -> bool:
        trainer = self._trainer
        on_gpu = trainer.device.type == "cuda"
        return (
            self._may_be_fused or trainer.precision == "auto" or trainer.compile == "auto" or (on_gpu and trainer.graph == "auto")
        )

    def _improve(self, chooser: Chooser, setup: Setup) -> Setup:
        trainer = self._trainer
        on_gpu = trainer.device.type == "cuda"
        if self._may_be_fused and not setup.fused:
            setup = chooser.better("fused", setup, replace(setup, fused=True))
        if trainer.graph == "auto" and not trainer.ranks.together:
            if on_gpu:
                candidate = replace(setup, graph=True, fused=setup.fused or self._may_be_fused)
                setup = chooser.better("graph", setup, candidate)
            else:
                chooser.note("graph", "there is no GPU")
        if trainer.precision == "auto":
            setup = self._improve_precision(chooser, setup)
        if trainer.compile == "auto" and chooser.is_worth_compiling(setup):
            setup = chooser.better("compile", setup, replace(setup, compile=True))
        return setup

    def _improve_precision(self, chooser: Chooser, setup: Setup) -> Setup:
        if self._trainer.device.type == "cuda":
            setup = chooser.better("tf32", setup, replace(setup, precision="tf32"))
            return chooser.better("bf16", setup, replace(setup, precision="bf16"))
        slower = _bf16_slowdown()
        if slower > 1.0:
            chooser.note("bf16", f"products take {slower:.1f}x the time of fp32 on this CPU")
            return setup
        return chooser.better("bf16", setup, replace(setup, precision="bf16"))

    def _measure(self, setup: Setup, num_steps: int, batches: list[Any], snapshot: Snapshot, *, shaken: bool) -> Timed:
        trainer = self._trainer
        is_new = setup not in self._tried
        if is_new:
            self._tried[setup] = self._make(setup, Scale(trainer.device) if setup.precision == "fp16" else None)
        step, work, readout = self._tried[setup]
        self._activate(setup)
        for_graph = trainer.device.type == "cuda" and isinstance(trainer.optimizer, FUSED)
        for is_warm_up in (True, False) if is_new else (False,):
            snapshot.restore(for_graph=for_graph)
            step.bind()
            step.discard()
            readout.begin(0)
            if shaken:
                torch.manual_seed(_SHAKEN_SEED)
            _synchronize(trainer.device)
            begin = now_ns()
            self._run(work, batches, 2 if is_warm_up else num_steps)
            _synchronize(trainer.device)
            seconds = (now_ns() - begin) / 1e9 / num_steps
        readout.take()
        losses = [loss for window in readout.ready(wait=True) for loss in window.column("loss")]
        return Timed(seconds, losses[:num_steps])

    def _run(self, work: Work, batches: list[Any], num_steps: int) -> None:
        entries = islice(cycle(batches), num_steps * self._trainer.accumulate)
        for number, entry in enumerate(entries, 1):
            work.micro(entry)
            if number % self._trainer.accumulate == 0:
                work.update()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _bf16_slowdown() -> float:
    """How many times longer a product of matrices takes in bf16 than in fp32, on this CPU."""
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(256, 256, dtype=dtype)
        matrix @ matrix
        rounds = []
        for _ in range(3):
            begin = now_ns()
            matrix @ matrix
            rounds.append(now_ns() - begin)
        times[dtype] = min(rounds)
    return times[torch.bfloat16] / times[torch.float32]
