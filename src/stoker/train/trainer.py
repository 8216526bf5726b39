"""The trainer: a model, a loss and an optimizer become steps over any iterable of batches.

    trainer = stoker.Trainer(model, loss, optimizer, max_grad_norm=1.0, folder="runs/first")
    result = trainer.fit(feed, valid=valid_feed, epochs=25)

It holds what a training run consists of; `fit` says over which batches and how long. How steps are computed (precision, fused
optimizer, CUDA graph, compiled model) is its setup. By default only what leaves the weights bit-equal is chosen by measuring.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn

from stoker._progress import TrainingProgress as Bar
from stoker._text import check_device
from stoker.errors import CheckpointError, OptionError
from stoker.train import resume as contents
from stoker.train import state_dict
from stoker.train.autotune import Setup, Trial
from stoker.train.checkpoint import Checkpoint, Checkpoints
from stoker.train.distributed import Elsewhere, Ranks, is_shard, shard
from stoker.train.engine import Engine
from stoker.train.loggers import Writer
from stoker.train.loop import Fit, Result, Signals, check_rates, deliver, evaluate
from stoker.train.loss import as_loss
from stoker.train.metrics import Metric
from stoker.train.numerics import Scale, autocast, check_optimizer, check_precision, kept_matmul_flags, recomputed, refuses_fused
from stoker.train.readout import Log
from stoker.train.run import NAME, Run, check_new, read_record, recorded_setup, remove_run, step_reached
from stoker.train.schedule import EarlyStopping, Schedule, as_schedule
from stoker.train.step import Ema
from stoker.train.stream import Stream

Auto = Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What an epoch's numbers mean."""

    improved: bool
    stop: bool
    value: float | None


class Trainer:
    """Trains `model` to make `loss(model, batch)` smaller.

    `optimizer` is one of torch.optim, or a function that makes one of the parameters. `precision` is fp32 and the model is not
    compiled unless asked; `fused=None` keeps the optimizer as it was made. `graph="auto"` takes a CUDA graph where that is faster
    and weights stay bit-equal. `speed="measured"` chooses whatever of these is faster with the same losses, unless it was given
    a value; `setup` (a `Setup`, or the folder of a run) takes the choice of another run.

    `grad_accum_steps` micro-batches make one update, weighted by their samples. `max_grad_norm` is the largest norm of the gradient,
    `ema` the decay of an average of the weights, with which the model is evaluated and exported. `schedule` is a function of the update's
    number. `guard` says what becomes of an update whose loss or gradient is not finite: it never reaches the weights; then "stop"
    ends the run, "skip" goes on. `activation_checkpointing` saves memory of activations for time.

    With a `folder` the run is logged, and saved every `save_every` updates (each epoch, without it), and can be resumed. A folder
    that holds a run is refused, unless `overwrite` lets a new run replace it: files that stoker did not write stay there.
    `max_seconds` ends the run with its time. `config` is what the run folder keeps of the user's own settings.

    Started by torchrun, all processes train together, each on its own batches (a feed deals them out): an update is that of all
    their samples. With `parallel="fsdp"` each keeps a part of the weights, else ("ddp", "auto") all of them; rank 0 writes.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        optimizer: Any,
        *,
        precision: str = "auto",
        grad_accum_steps: int = 1,
        max_grad_norm: float | None = None,
        ema: float | None = None,
        graph: bool | Auto = "auto",
        compile: bool | Auto = "auto",
        fused: bool | None = None,
        speed: Literal["exact", "measured"] = "exact",
        setup: Setup | str | Path | None = None,
        activation_checkpointing: bool = False,
        schedule: Any = None,
        early_stopping: EarlyStopping | None = None,
        metrics: Mapping[str, Metric] | None = None,
        guard: Literal["stop", "skip"] = "stop",
        folder: str | Path | None = None,
        overwrite: bool = False,
        save_every: int | None = None,
        keep_checkpoints: int = 2,
        max_seconds: float | None = None,
        log_every: int = 50,
        loggers: Sequence[Writer] = (),
        device: str | torch.device | None = None,
        parallel: Literal["auto", "ddp", "fsdp"] = "auto",
        seed: int | None = None,
        config: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise OptionError(f"model is {model!r}; expected a torch.nn.Module.")
        if seed is not None:
            torch.manual_seed(_checked("seed", seed, least=0))
        self.seed = seed
        self.model = model
        kind = "fsdp" if any(map(is_shard, model.parameters())) else parallel
        self.ranks = Ranks.find(kind, model, device)
        self.device = _device_of(model, self.ranks.device if self.ranks.together else device)
        self.ranks.align(model)
        if self.ranks.shards:
            shard(model, optimizer, self.ranks)
        self.loss = as_loss(loss)
        self.loss_modules = [loss] if isinstance(loss, nn.Module) else []
        self.optimizer = check_optimizer(optimizer, model.parameters())
        self.precision = check_precision(precision, self.device)
        self.graph = _checked_switch("graph", graph)
        self.compile = _checked_switch("compile", compile)
        self.fused = _checked_fused(fused, self.optimizer)
        if speed not in ("exact", "measured"):
            raise OptionError(f"speed is {speed!r}; expected 'exact' or 'measured'.")
        if speed == "measured" and setup is not None:
            raise OptionError("speed='measured' chooses a setup, but setup= gives one. Pass one of the two.")
        self.speed = speed
        self.speed_option = 'speed="measured"'
        """What a hint says to use; the command line has other words for it."""
        self.given_setup = setup
        if graph is True and self.device.type != "cuda":
            raise OptionError(f"graph=True needs a GPU, but the model is on {self.device.type}. Use graph='auto'.")
        if graph is True and self.ranks.together:
            raise OptionError(f"graph=True is for one process, but {self.ranks.world_size} ranks train together. Use graph='auto'.")
        self.grad_accum_steps = _checked("grad_accum_steps", grad_accum_steps, least=1)
        self.max_grad_norm = _checked_positive("max_grad_norm", max_grad_norm)
        self.ema = Ema(model, ema) if ema is not None else None
        self.activation_checkpointing = activation_checkpointing
        self.schedule: Schedule | None = as_schedule(schedule) if schedule is not None else None
        self.early_stopping = early_stopping
        self.metrics = dict(metrics or {})
        if guard not in ("stop", "skip"):
            raise OptionError(f"guard is {guard!r}; expected 'stop' or 'skip'.")
        self.guard = guard
        self.folder = checked_folder("folder", folder) if folder is not None else None
        self.overwrite = overwrite
        self.save_every = _checked("save_every", save_every, least=1) if save_every is not None else None
        self.keep_checkpoints = keep_checkpoints
        self.max_seconds = _checked_positive("max_seconds", max_seconds)
        self.log_every = _checked("log_every", log_every, least=1)
        self.loggers = tuple(loggers) if self.ranks.is_first else ()
        self.config = dict(config or {})
        self.shows_progress = progress and self.ranks.is_first
        self.valid: Iterable[Any] | None = None
        self.identity: dict[str, Any] = {}
        """The fingerprint of the run: what a later process compares before it resumes."""
        self.setup = Setup()
        self.trials: tuple[Trial, ...] = ()
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        check_rates(self.rates, "of the optimizer")
        self.stopping: EarlyStopping | None = early_stopping
        self._engine: Engine | None = None

    def fit(
        self,
        train: Iterable[Any],
        *,
        valid: Iterable[Any] | None = None,
        epochs: int = 1,
        resume: bool = False,
        allow: Collection[str] = (),
        strict: bool = False,
    ) -> Result:
        """Train over so many epochs.

        `resume` continues from the newest checkpoint of the folder, if there is one: refused where a field of the run's fingerprint
        (options, optimizer, loss, model, data, setup) differs, unless `allow` names the field or its group. With `strict`, a
        damaged newest checkpoint is an error, and not a reason to take the one before it. A signal lets the step end and is then
        delivered; with a folder everything is saved before that.
        """
        epochs = _checked("epochs", epochs, least=1)
        if resume and self.folder is None:
            raise OptionError("resume=True needs folder=, where the checkpoints are.")
        stream = Stream(train, self.device)
        self.ranks.check_same("updates of the training", stream.num_updates(self.grad_accum_steps, epochs))
        self.valid = valid
        self.stopping = self.early_stopping or (EarlyStopping("val_loss", patience=2**31) if valid is not None else None)
        if self.folder is not None and not resume:
            self.ranks.first(self._clear_folder)
        if self.folder is not None:
            self.identity = contents.identify(self, train, total_updates=stream.num_updates(self.grad_accum_steps, epochs))
        with contextlib.ExitStack() as stack:
            folder_of = Checkpoints if self.ranks.is_first else Elsewhere
            checkpoints = (
                stack.enter_context(folder_of(self.folder / "checkpoints", keep=self.keep_checkpoints)) if self.folder else None
            )
            found = self._find(checkpoints, resume=resume, allow=allow, strict=strict)
            self._rehearse()
            stack.enter_context(kept_matmul_flags())
            if self.activation_checkpointing:
                stack.enter_context(recomputed(self.model))
            engine = self._engine = stack.enter_context(
                Engine(self, stream, total_updates=stream.num_updates(self.grad_accum_steps, epochs))
            )
            if found is None and self.ranks.together:
                self._part_random()
            self._choose(engine, found, resume=resume, allow=allow)
            if self.setup.compile:
                self.say("compiling the model (this may take minutes) ...")
            work = engine.work(self.setup)
            run: Run | None = None

            def open_run() -> None:
                nonlocal run
                run = self._open_run(stream, epochs, resume=resume, found=found)

            self.ranks.first(open_run)
            if run is not None:
                stack.enter_context(run)
            log = Log(
                [*([run.metrics] if run is not None else []), *self.loggers],
                stack.enter_context(
                    Bar(stream.num_updates(self.grad_accum_steps, epochs), epochs=epochs, enabled=self.shows_progress)
                ),
            )
            stack.callback(log.close)
            signals = stack.enter_context(Signals())
            fit = Fit(
                self,
                work,
                engine.readout,
                stream,
                epochs=epochs,
                rate=engine.rate,
                checkpoints=checkpoints,
                log=log,
                signals=signals,
                note_saved=run.note_saved if run is not None else None,
            )
            if found is not None:
                fit.load(found.parts)
            stopped = fit.run()
            if checkpoints is not None:
                checkpoints.wait()
            self.ranks.meet()  # so that nobody leaves, and is missed, before all is saved
            result = self._result(fit, stopped)
            log.close()
            if run is not None:
                run.end(stopped, step=result.step)
        if signals.asked is not None and stopped == "signal":
            deliver(signals.asked)
        return result

    def _find(self, checkpoints: Checkpoints | None, *, resume: bool, allow: Collection[str], strict: bool) -> Checkpoint | None:
        """The checkpoint to go on from."""
        if checkpoints is None or not resume:
            return None

        def read() -> dict[str, Any] | None:
            found = checkpoints.latest(strict=strict)
            if found is None:
                self._refuse_lost(checkpoints.folder)
                return None
            contents.compare(self, found, allow=allow)
            contents.check(self, found)
            return {**vars(found), "path": str(found.path)}

        found = self.ranks.first(read)
        return None if found is None else Checkpoint(**{**found, "path": Path(found["path"])})

    def _rehearse(self) -> None:
        """Evaluate one batch, so that a loss or metric that cannot be evaluated is known before the first update."""
        if isinstance(self.valid, Iterator):
            return  # its batches come once
        names = ["loss"]
        if self.valid is not None:
            before = state_dict.capture()
            values = self.evaluate(Stream(self.valid, self.device).peek(1))
            state_dict.restore(before)
            names += [f"val_{name}" for name in values]
        if self.stopping is not None and self.stopping.metric not in names:
            raise OptionError(f"early stopping watches {self.stopping.metric!r}, but an epoch has {', '.join(names)}.")

    def _clear_folder(self) -> None:
        """Make room for a new run, or refuse where another one is."""
        if self.folder is not None and self.overwrite and (self.folder / NAME).exists():
            remove_run(self.folder)
        elif self.folder is not None:
            check_new(self.folder)

    def _refuse_lost(self, checkpoints: Path) -> None:
        """Where no checkpoint is found, refuse to begin again with a run that had some: its log would be lost too."""
        if self.folder is None or not (self.folder / NAME).exists():
            return
        step = step_reached(read_record(self.folder))
        if step:
            raise CheckpointError(
                f"{self.folder} was saved at step {step:,}, as its {NAME} says, but {checkpoints} holds no checkpoint. "
                f"Put them back, begin again in another folder, or replace the run (overwrite)."
            )

    def _choose(self, engine: Engine, found: Checkpoint | None, *, resume: bool, allow: Collection[str]) -> None:
        """How steps are computed. A resumed run computes them as before, as another setup gives other bits."""

        def choose() -> list[Any]:
            known = self._known_setup(found, resume=resume, allow=allow)
            setup, trials = (known, ()) if known is not None else engine.choose()
            return [asdict(setup), [asdict(trial) for trial in trials]]

        setup, trials = self.ranks.first(choose)
        self.setup, self.trials = Setup(**setup), tuple(Trial(**trial) for trial in trials)
        if self.ranks.together:
            self.setup = replace(self.setup, graph=False)
            reason = f"{self.ranks.world_size} ranks train together, and a graph is of one process"
            self.trials = (*self.trials, Trial(name="graph", chosen=False, reason=reason))
            self.say(str(self.trials[-1]))

    def _known_setup(self, found: Checkpoint | None, *, resume: bool, allow: Collection[str]) -> Setup | None:
        """The setup of the run that is resumed, from its checkpoint or, where it has none yet, its run.json; or the given one."""
        if found is not None:
            where, setup = str(found.path), contents.setup_of(self, found)
        elif resume and self.folder is not None and (self.folder / NAME).exists():
            where, setup = str(self.folder), recorded_setup(self.folder)
            allowed = [name for name in allow if name.partition(".")[0] == "setup"]
            state_dict.check_facts(
                {"setup": asdict(setup)}, {"setup": asdict(setup) | contents.asked_setup(self)}, where=where, allow=allowed
            )
        elif self.given_setup is not None:
            setup, where = self._copied_setup(self.given_setup)
        else:
            return None
        setup = replace(setup, **contents.asked_setup(self))
        if isinstance(self.graph, bool):
            setup = replace(setup, graph=self.graph)
        self._check_possible(setup, where)
        return setup

    def _copied_setup(self, given: Setup | str | Path) -> tuple[Setup, str]:
        setup = given if isinstance(given, Setup) else recorded_setup(Path(given))
        where = "setup=" if isinstance(given, Setup) else str(given)
        self._check_possible(setup, where)
        for name, value in contents.asked_setup(self).items():
            if getattr(setup, name) != value:
                raise OptionError(
                    f"{name} is {value!r}, but the setup of {where} has {getattr(setup, name)!r}. Leave one of them out."
                )
        self.say(f"setup of {where}: {setup}")
        return setup, where

    def _check_possible(self, setup: Setup, where: str) -> None:
        """Refuse the setup of another run or machine where this one cannot do it."""
        refusal = None
        if self.device.type != "cuda" and (setup.precision in ("tf32", "fp16") or setup.graph):
            what = "a CUDA graph" if setup.graph else setup.precision
            refusal = f"it has {what}, but the model is on {self.device.type}"
        elif setup.fused and (reason := refuses_fused(self.optimizer)) is not None:
            refusal = f"it has a fused optimizer, but {reason}"
        if refusal is not None:
            raise OptionError(
                f"the setup of {where} ({setup}) is not possible here: {refusal}. Train where it is, or begin a new run."
            )

    def _part_random(self) -> None:
        """Let each rank draw random numbers of its own, all of which follow from those of the first."""
        state = self.ranks.share(state_dict.capture())
        if not self.ranks.is_first:
            state_dict.derive(state, self.ranks.rank)

    def say(self, line: str) -> None:
        """Print a line, where progress is shown."""
        if self.shows_progress:
            print(f"  {line}", flush=True)

    def judge(self, values: Mapping[str, float], epoch: int) -> Judgement:
        """What the numbers of an epoch mean for the run."""
        stopping = self.stopping
        if stopping is None:
            return Judgement(improved=False, stop=False, value=None)
        if stopping.metric not in values:
            raise OptionError(f"early stopping watches {stopping.metric!r}, but an epoch has {', '.join(values)}.")
        verdict = stopping.update(values[stopping.metric], epoch)
        return Judgement(improved=verdict.improved, stop=verdict.stop, value=values[stopping.metric])

    def evaluate(self, batches: Iterable[Any]) -> dict[str, float]:
        """The mean loss and the metrics over all samples, with the average of the weights where there is one."""
        stream = Stream(batches, self.device)
        if self.ranks.shards:  # layers wait for each other
            self.ranks.check_same("batches to evaluate", stream.num_updates(1, 1))
        with self.ema.applied() if self.ema is not None else contextlib.nullcontext():
            return evaluate(
                self.model,
                self.loss,
                batches,
                metrics=self.metrics,
                context=autocast(self.setup.precision, self.device),
                place=stream.place if stream.needs_placing else lambda batch: batch,
                gather=self.ranks.gather if self.ranks.together else None,
            )

    @cached_property
    def compiled(self) -> nn.Module:
        """The model as torch.compile makes it, when it is first called."""
        return cast(nn.Module, torch.compile(self.model))

    @property
    def scale(self) -> Scale | None:
        """The loss scale, where there is one."""
        return self._engine.scale if self._engine is not None else None

    @property
    def uses_scale(self) -> bool:
        """Whether updates may be held back because a gradient overflowed."""
        return self.setup.precision == "fp16"

    def _open_run(self, stream: Stream, epochs: int, *, resume: bool, found: Checkpoint | None) -> Run | None:
        """The run folder: new, or gone on with from the last numbers that the checkpoint does not hold itself."""
        if self.folder is None:
            return None
        stores = {
            name: str(digest)
            for name, batches in (("train", stream.batches), ("valid", self.valid))
            if (digest := getattr(getattr(batches, "store", None), "digest", None)) is not None
        }
        config = {**contents.comparable(self)["config"], "epochs": epochs, **self.config, "setup": asdict(self.setup)}
        trials = [asdict(trial) for trial in self.trials]
        return Run(self.folder, config=config, stores=stores, trials=trials, from_step=_logged_step(found) if resume else None)

    def _result(self, fit: Fit, stopped: str) -> Result:
        progress = fit.progress
        return Result(
            stopped=stopped,  # type: ignore[arg-type]
            step=progress.step,
            epoch=progress.epoch,
            metrics=progress.last,
            best=progress.best,
            best_step=progress.best_step,
            skipped=progress.skipped,
            seconds=fit.seconds,
            wait=fit.wait_share,
            setup=self.setup,
            trials=self.trials,
            folder=self.folder,
        )


def _logged_step(found: Checkpoint | None) -> int:
    """The last step whose numbers had been logged when a checkpoint was saved; those under way are logged anew."""
    if found is None:
        return 0
    taken = found.parts["fit"]["taken"]
    return int(taken[0]["step"]) - 1 if taken else found.step


def _device_of(model: nn.Module, wanted: str | torch.device | None) -> torch.device:
    parameters = list(model.parameters())
    if not parameters:
        raise OptionError("model has no parameters, so there is nothing to train.")
    if wanted is None:
        return parameters[0].device
    model.to(check_device(wanted))
    return next(model.parameters()).device


def checked_folder(name: str, value: str | Path) -> Path:
    """A path that may be the folder of a run."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise OptionError(f"{name} is {value!r}; expected the path of a folder.")
    return Path(value)


def _checked(name: str, value: Any, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} is {value!r}; expected a whole number of at least {least}.")
    return value


def _checked_positive(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise OptionError(f"{name} is {value!r}; expected a number above 0, or None.")
    return float(value)


def _checked_fused(fused: Any, optimizer: torch.optim.Optimizer) -> bool | None:
    if fused is not None and not isinstance(fused, bool):
        raise OptionError(f"fused is {fused!r}; expected True, False, or None for the optimizer as it was made.")
    if fused and (reason := refuses_fused(optimizer)) is not None:
        raise OptionError(f"fused=True is not possible: {reason}. Use fused=None.")
    return fused


def _checked_switch(name: str, value: Any) -> bool | Auto:
    if value is True or value is False or value == "auto":
        return value  # type: ignore[no-any-return]
    raise OptionError(f"{name} is {value!r}; expected True, False or 'auto'.")
