"""The trainer: a model, a loss and an optimizer become steps over any iterable of batches.

    trainer = stoker.Trainer(model, loss, optimizer, max_grad_norm=1.0, folder="runs/first")
    result = trainer.fit(feed, valid=valid_feed, epochs=25)

It holds what a training run consists of; `fit` says over which batches and how long. How steps are computed (precision, fused
optimizer, CUDA graph, compiled model) is its setup. By default only what leaves the weights bit-equal is chosen by measuring.
"""

from __future__ import annotations

import contextlib
import signal
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import nn

from stoker._progress import TrainingProgress
from stoker._types import Count, checked, converted
from stoker.errors import CheckpointError, OptionError, StokerError
from stoker.train import resume as resuming
from stoker.train import state_dict
from stoker.train.activation_checkpointing import recomputed
from stoker.train.autotune import Setup, Trial
from stoker.train.callbacks import Callback, check_callbacks, methods_of, writers_of
from stoker.train.checkpoint import Checkpoint, CheckpointFolder
from stoker.train.distributed import Ranks, is_shard, shard
from stoker.train.early_stopping import EarlyStopping
from stoker.train.ema import Ema
from stoker.train.engine import Engine
from stoker.train.fit import Fit, Result, Signals, check_rates, evaluate, predict
from stoker.train.loggers import Log
from stoker.train.loss import as_loss
from stoker.train.metrics import Metric, TorchMetric, as_metric
from stoker.train.mirror import Mirror, MirroredFolder
from stoker.train.numerics import autocast, check_precision, kept_matmul_flags
from stoker.train.optimizer import check_optimizer, refuses_fused
from stoker.train.run import (
    CHECKPOINTS,
    NAME,
    Run,
    check_new,
    check_own,
    find_launch,
    keep_feed,
    read_record,
    recorded_setup,
    remove_run,
    step_reached,
)
from stoker.train.schedule import as_schedule, is_torch_scheduler, scheduled_rates
from stoker.train.settings import Checkpoints, Components, Execution, Logging, Positive, TrainerSettings
from stoker.train.stream import Stream
from stoker.watch.cause import Slowdown
from stoker.watch.loop import Watch

LEAVE_SECONDS = 10.0
"""What a rank of `torchrun` waits for its agent, when another one has ended the run."""


class Trainer:
    """Trains a model to make `loss(model, batch)` smaller.

    Started by torchrun, all processes train together, each on its own batches (a feed deals them out): an update is that of all
    their samples, and rank 0 writes.

    Args:
        model: What is trained, on its device. With torchrun and the model on a GPU, each process takes a GPU of its own.
        loss: A function `(model, batch)` that returns a tensor or a dict with `loss`; or a criterion such as `nn.MSELoss()`, for
            batches with one input and one target.
        optimizer: One of torch.optim, or a function that makes one from the parameters.
        precision: `"fp32"`, `"tf32"`, `"bf16"` or `"fp16"`. `"auto"` is fp32, unless `Execution(measured=True)` finds something faster.
        grad_accum_steps: Batches per update, weighted by their samples. What is left over of an epoch is an update of its own.
        max_grad_norm: Clip the gradient to this norm.
        ema: Decay of an EMA of the weights, with which the model is evaluated and exported.
        guard: What follows a loss or gradient that is NaN or Inf. The update never reaches the weights; then `"stop"` ends the
            run, `"skip"` continues.
        schedule: A schedule of `stoker.train`, a function `(step, total) -> factor` of the learning rate, or a scheduler of torch
            that is a function of the step, such as `LambdaLR`; its steps are updates.
        metrics: What is measured in evaluation in addition to the loss, by name: metrics of `stoker.train` or of torchmetrics.
        early_stopping: When to stop before the last epoch.
        execution: How steps are computed: CUDA graph, compile, fused optimizer, processes, recomputed activations.
        folder: Folder of the run: it gets a log and checkpoints, and can be resumed.
        checkpoints: When the run is saved, how many checkpoints are kept, and where copies go.
        logging: How often a line is logged, whether slowdowns are watched, and values of your own for run.json.
        callbacks: Objects whose `on_epoch_end(report)` or `on_batch_end(report)` is called (`report.stop()` ends the run), or whose
            `write(step, values)` gets the metrics, such as `TensorBoard(…)`.
        seed: Seed of the random numbers of torch, NumPy (`np.random`) and Python (`random`).
        progress: Show progress on stderr.

    Raises:
        OptionError: An option is invalid, or not possible with this model or on this device.

    Example:
        >>> import torch, stoker
        >>> model = torch.nn.Linear(3, 1)
        >>> trainer = stoker.Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), progress=False)
        >>> result = trainer.fit([(torch.ones(8, 3), torch.zeros(8, 1))], epochs=5)
        >>> result.stopped, result.step
        ('finished', 5)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: nn.Module | Callable[..., Any],
        optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer],
        *,
        precision: str = "auto",
        grad_accum_steps: int = 1,
        max_grad_norm: float | None = None,
        ema: float | None = None,
        guard: Literal["stop", "skip"] = "stop",
        schedule: Callable[[int, int | None], float] | torch.optim.lr_scheduler.LRScheduler | None = None,
        metrics: Mapping[str, Metric | TorchMetric] | None = None,
        early_stopping: EarlyStopping | None = None,
        execution: Execution = Execution(),
        folder: str | Path | None = None,
        checkpoints: Checkpoints = Checkpoints(),
        logging: Logging = Logging(),
        callbacks: Sequence[Callback] = (),
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        settings = checked(
            TrainerSettings(
                precision=precision,  # type: ignore[arg-type]
                grad_accum_steps=grad_accum_steps,
                max_grad_norm=max_grad_norm,
                ema=ema,
                guard=guard,
                seed=seed,
                execution=execution,
                checkpoints=checkpoints,
                logging=logging,
            )
        )
        execution = settings.execution
        if not isinstance(model, nn.Module):
            raise OptionError.expected("model", model, "a torch.nn.Module")
        if seed is not None:
            state_dict.seed_all(seed)
        self.settings = settings
        self.model = model
        if not any(True for _ in model.parameters()):
            raise OptionError("model has no parameters, so there is nothing to train.", parameter="model")
        self.ranks = Ranks.find("fsdp" if any(map(is_shard, model.parameters())) else execution.parallel, model)
        if self.ranks.together:
            model.to(self.ranks.device)
        self.device = next(model.parameters()).device
        self.ranks.align(model)
        if self.ranks.shards:
            shard(model, optimizer, self.ranks)
        loss_function = as_loss(loss)
        self.optimizer = check_optimizer(optimizer, model.parameters())
        check_precision(precision, self.device)
        if execution.fused and (reason := refuses_fused(self.optimizer)) is not None:
            raise OptionError(f"fused=True is not possible: {reason}. Use fused=None.", parameter="fused")
        if execution.graph is True and self.device.type != "cuda":
            raise OptionError(
                f"graph=True needs a GPU, but the model is on {self.device.type}. Use graph='auto'.", parameter="graph"
            )
        if execution.graph is True and self.ranks.together:
            raise OptionError(
                f"graph=True is for one process, but {self.ranks.world_size} ranks train together. Use graph='auto'.",
                parameter="graph",
            )
        self.ema = Ema(model, ema) if ema is not None else None
        rates = tuple(float(group["lr"]) for group in self.optimizer.param_groups)
        scheduled = None if schedule is None else as_schedule(schedule)
        if scheduled is not None and is_torch_scheduler(schedule):
            rates = scheduled_rates(schedule, self.optimizer)
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        check_rates(rates, "of the optimizer")
        self._parts = Components(
            settings=settings,
            model=model,
            loss=loss_function,
            loss_modules=(loss,) if isinstance(loss, nn.Module) else (),
            optimizer=self.optimizer,
            rates=rates,
            schedule=scheduled,
            ema=self.ema,
            device=self.device,
            ranks=self.ranks,
            shows_progress=progress and self.ranks.is_first,
        )
        if early_stopping is not None and not isinstance(early_stopping, EarlyStopping):
            raise OptionError.expected("early_stopping", early_stopping, "EarlyStopping(…) or None")
        if not isinstance(metrics, Mapping | None):
            raise OptionError.expected("metrics", metrics, "a dict of names and metrics, such as {'auc': AUC()}")
        self.early_stopping = early_stopping
        self.metrics = {name: as_metric(name, metric) for name, metric in (metrics or {}).items()}
        if folder is not None and (not isinstance(folder, str | Path) or not str(folder) or "\0" in str(folder)):
            raise OptionError(f"folder is {folder!r}; expected the path of a folder.", parameter="folder")
        self.folder = Path(folder) if folder is not None else None
        self.callbacks = check_callbacks(callbacks)
        self.setup = Setup()
        """How steps are computed; chosen by `fit`."""
        self.trials: tuple[Trial, ...] = ()
        """What was tried to find that out."""

    def __repr__(self) -> str:
        parameters = sum(weight.numel() for weight in self.model.parameters())
        folder = f", folder {self.folder}" if self.folder is not None else ""
        return (
            f"<Trainer of {type(self.model).__name__} with {parameters:,} parameters, {type(self.optimizer).__name__}, on {self.device}"
            f"{folder}>"
        )

    def fit(
        self,
        train: Iterable[Any],
        *,
        valid: Iterable[Any] | None = None,
        epochs: int = 1,
        max_seconds: float | None = None,
        resume: bool = False,
        overwrite: bool = False,
        allow: Collection[str] = (),
        strict: bool = False,
    ) -> Result:
        """Train for `epochs` passes over `train`.

        A signal lets the step end and is then delivered; with a folder everything is saved before that.

        Args:
            train: Batches: a feed, a DataLoader, a list, or another iterable.
            valid: Batches that are evaluated after each epoch.
            epochs: Passes over `train`, those before a resume included.
            max_seconds: Save and end after this time, that before a resume included.
            resume: Continue from the newest checkpoint of the folder, if there is one. Refused where a field of the run's
                fingerprint (options, optimizer, loss, model, data, setup) differs.
            overwrite: Replace the run that the folder holds. Files that stoker did not write stay.
            allow: Fields of the fingerprint, or groups of them, that may differ.
            strict: Raise if the newest checkpoint is damaged, instead of using the one before it, and if a source file of the
                model or the loss changed, instead of a warning.

        Returns:
            How the run ended, and its metrics.

        Raises:
            OptionError: The folder holds a run already, or an option is not possible with these batches.
            CheckpointError: There is no checkpoint that can be resumed.
            NonFiniteError: A loss or gradient is NaN or Inf, with `guard="stop"`.
        """
        epochs, max_seconds = converted("epochs", epochs, Count), converted("max_seconds", max_seconds, Positive | None)
        if resume and self.folder is None:
            raise OptionError("resume=True needs folder=, where the checkpoints are.", parameter="resume")
        stream = Stream(train, self.device)
        parts = self._parts = self._with_global_batch(stream)
        total_updates = stream.num_updates(parts.settings.grad_accum_steps, epochs)
        self.ranks.check_same("updates of the training", total_updates)
        stopping = self.early_stopping or (EarlyStopping("val_loss", patience=2**31) if valid is not None else None)
        identity: dict[str, Any] = {}
        checkpoints: CheckpointFolder | None = None
        newest: Checkpoint | None = None
        with contextlib.ExitStack() as stack:
            if self.folder is not None:
                if not resume or not ((self.folder / NAME).exists() or (self.folder / CHECKPOINTS).is_dir()):
                    replaces = overwrite and (self.folder / NAME).exists()
                    # A run to be replaced stays until the new one is known to work.
                    self.ranks.first(partial(check_own if replaces else check_new, self.folder))
                identity = resuming.identify(self._parts, train, valid, stopping=stopping, total_updates=total_updates)
                checkpoints = self._checkpoints(self.folder)
                stack.enter_context(checkpoints)
                if resume:
                    state = self.ranks.first(partial(self._read_newest, checkpoints, identity, allow=allow, strict=strict))
                    newest = None if state is None else Checkpoint(**{**state, "path": Path(state["path"])})
            for note in filter(None, (getattr(getattr(batches, "subset", None), "note", "") for batches in (train, valid))):
                self._parts.say(note)
            self._rehearse(valid, stopping)
            stack.enter_context(kept_matmul_flags())
            if self.settings.execution.activation_checkpointing:
                stack.enter_context(recomputed(self.model))
            engine = stack.enter_context(Engine(self._parts, stream, total_updates=total_updates))
            if newest is None and self.ranks.together:  # each rank draws random numbers of its own, which follow from the first's
                random = self.ranks.share(state_dict.capture())
                if not self.ranks.is_first:
                    state_dict.derive(random, self.ranks.rank)
            self._choose(engine, newest, resume=resume, allow=allow)
            if self.setup.compile:
                self._parts.say("compiling the model (this may take minutes) ...")
            work = engine.work(self.setup)
            runs: list[Run] = []  # of the first rank, where there is a folder

            def open_run(folder: Path) -> None:
                if overwrite and not resume:
                    remove_run(folder)
                for on_open in methods_of(self.callbacks, "on_open"):
                    on_open()
                streams = {"train": stream} | ({"valid": Stream(valid)} if valid is not None else {})
                stores = {name: fed.digest for name, fed in streams.items() if fed.digest is not None}
                options = {**resuming.comparable(self._parts)["config"], "epochs": epochs, **self.settings.logging.config}
                config, trials = {**options, "setup": asdict(self.setup)}, [asdict(trial) for trial in self.trials]
                step = _logged_step(newest) if resume else None
                runs.append(Run(folder, config=config, stores=stores, trials=trials, from_step=step))
                keep_feed(folder, train)

            if self.folder is not None:
                self.ranks.first(partial(open_run, self.folder))
            run = stack.enter_context(runs[0]) if runs else None
            bar = TrainingProgress(total_updates, epochs=epochs) if self._parts.shows_progress else None
            writers = writers_of(self.callbacks) if self.ranks.is_first else []
            log = Log([*([run.metrics] if run is not None else []), *writers], bar)
            stack.callback(log.close)
            stack.callback(stream.close)
            watch = stack.enter_context(self._watch(run)) if self.settings.logging.watch else None
            signals = stack.enter_context(Signals())
            fit = Fit(
                self._parts,
                engine,
                work,
                stream,
                setup=self.setup,
                epochs=epochs,
                max_seconds=max_seconds,
                log=log,
                signals=signals,
                validate=partial(self.evaluate, valid) if valid is not None else None,
                stopping=stopping,
                checkpoints=checkpoints,
                identity=identity,
                note_saved=run.note_saved if run is not None else None,
                callbacks=self.callbacks,
                watch=watch,
                keeps_best=self._restores_best and checkpoints is None,
            )
            if newest is not None:
                fit.load(newest.parts)
            stopped = fit.run()
            if checkpoints is not None:
                checkpoints.wait()
            self.ranks.meet()  # so that no rank leaves, and is missed, before all is saved
            progress = fit.progress
            if self._restores_best and stopped in ("early", "finished") and progress.best_step not in (None, progress.step):
                self._restore_best(fit, checkpoints)
            result = Result(
                stopped=stopped,
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
                slowdowns=tuple(watch.slowdowns) if watch is not None else (),
                first_wait_seconds=fit.first_wait_ns / 1e9,
            )
            log.close()
            if run is not None:
                run.end(stopped, step=result.step)
            if stopped == "signal" and find_launch() is not None:
                # A rank that ends before its own agent stops it counts as a failure, of which torchrun allows only some.
                signals.wait(LEAVE_SECONDS)
        if signals.asked is not None and (stopped == "signal" or not self.ranks.together):
            # Let it do what it would have done, now that everything is saved and its handler is the user's again. One that came after
            # the last look must not be lost either; of several ranks it may have reached only some, which are not to end alone.
            signal.raise_signal(signals.asked)
        return result

    @property
    def _restores_best(self) -> bool:
        return self.early_stopping is not None and self.early_stopping.restore_best

    def _restore_best(self, fit: Fit, checkpoints: CheckpointFolder | None) -> None:
        """Give the model the weights of the best update: those in memory, or those of the best checkpoint."""

        def read() -> dict[str, Any] | None:
            best = None if checkpoints is None else checkpoints.best()
            is_it = best is not None and best.step == fit.progress.best_step
            return (
                {name: best.parts[name] for name in ("model", "ema") if name in best.parts} if best is not None and is_it else None
            )

        saved = fit.best_weights if checkpoints is None else self.ranks.first(read)
        if saved is None:
            warnings.warn(
                f"the best weights, of step {fit.progress.best_step:,}, were not saved, so the model has the last ones.",
                stacklevel=3,
            )
            return
        if self.ranks.shards and checkpoints is not None:
            saved = resuming.shards_of(self._parts, saved)
        resuming.put_weights(self._parts, saved)
        self._parts.say(f"the model has the weights of step {fit.progress.best_step:,}, which are the best")

    def _checkpoints(self, folder: Path) -> CheckpointFolder:
        settings, folder = self.settings.checkpoints, folder / "checkpoints"
        if settings.copies is None or not self.ranks.is_first:  # the others write none
            return CheckpointFolder(folder, keep=settings.keep)
        from stoker.store.object_storage import open_bucket

        mirror = Mirror(open_bucket(settings.copies), folder.parent, keep=settings.keep)
        return MirroredFolder(folder, keep=settings.keep, mirror=mirror)

    def _with_global_batch(self, stream: Stream) -> Components:
        """What the trainer was made of; where the batches have a global batch, with the accumulation that keeps it."""
        parts, micro_batches, rounds = self._parts, stream.micro_batches, stream.batches_per_update
        if micro_batches is None:
            return parts if parts.micro_batches is None else replace(parts, settings=self.settings, micro_batches=None)
        if self.settings.grad_accum_steps > 1:
            raise OptionError(
                f"grad_accum_steps is {self.settings.grad_accum_steps}, but the feed has a global batch, which says how many batches "
                f"make an update. Pass one of the two.",
                parameter="grad_accum_steps",
            )
        world_size = self.ranks.world_size
        if self.ranks.together:
            each = "1 batch" if rounds == 1 else f"{rounds:,} batches"
            line = f"{world_size:,} ranks: {each} per rank and update keep the global batch of {micro_batches:,} batches"
            idle = rounds * world_size - micro_batches
            parts.say(line + (f"; in the last one {idle:,} of {world_size:,} ranks have nothing to do" if idle else ""))
        settings = msgspec.structs.replace(self.settings, grad_accum_steps=rounds)
        return replace(parts, settings=settings, micro_batches=micro_batches)

    @property
    def components(self) -> Components:
        """The components of this trainer, checked and on its device."""
        return self._parts

    def evaluate(self, batches: Iterable[Any]) -> dict[str, float]:
        """The mean loss and the metrics over all samples, with the EMA of the weights where there is one.

        Args:
            batches: A feed, a DataLoader, a list, or another iterable of batches.

        Returns:
            The values by name: `loss`, what else the loss function returns as scalars, and the metrics.

        Example:
            >>> import torch, stoker
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = stoker.Trainer(model, torch.nn.MSELoss(), optimizer, progress=False)
            >>> list(trainer.evaluate([(torch.ones(4, 2), torch.zeros(4, 1))]))
            ['loss']
        """
        stream = Stream(batches, self.device)
        if self.ranks.shards:  # layers wait for each other
            self.ranks.check_same("batches to evaluate", stream.num_updates(1, 1))
        with self.ema.applied() if self.ema is not None else contextlib.nullcontext():
            return evaluate(
                self.model,
                self._parts.loss,
                stream,
                metrics=self.metrics,
                context=autocast(self.setup.precision, self.device),
                gather=self.ranks.gather if self.ranks.together else None,
            )

    def predict(
        self, batches: Iterable[Any], *, forward: Callable[[nn.Module, Any], torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """Return what the model predicts for all samples, with the EMA of the weights where there is one.

        Rows that are not samples (`valid` is False) are left out. With torchrun, each process predicts for its own batches.

        Args:
            batches: A feed, a DataLoader, a list, or another iterable of batches.
            forward: A function `(model, batch)` that returns the prediction. By default that of the loss function, which needs
                targets in the batch: of `supervised`, of a criterion, or of your own where it returns a dict with `prediction`.

        Returns:
            Tensors on the CPU, with one row per sample in the order of the batches: `prediction`, `target` where the loss gives it,
            and the entries `sample`, `series` and `store` of a feed with such `Returns(…)`.

        Raises:
            TrainError: The loss function returns no prediction, and `forward` is not given.

        Example:
            >>> import torch, stoker
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = stoker.Trainer(model, torch.nn.MSELoss(), optimizer, progress=False)
            >>> trainer.predict([(torch.ones(4, 2), torch.zeros(4, 1))])["prediction"].shape
            torch.Size([4, 1])
        """
        stream = Stream(batches, self.device)
        with self.ema.applied() if self.ema is not None else contextlib.nullcontext():
            return predict(
                self.model,
                self._parts.loss if forward is None else forward,
                stream,
                is_loss=forward is None,
                context=autocast(self.setup.precision, self.device),
            )

    def _watch(self, run: Run | None) -> Watch[Any]:
        """A watch on the updates of a fit, which keeps what it finds with the run."""

        def note(slowdown: Slowdown) -> None:
            self._parts.say(str(slowdown))
            if run is not None:
                with contextlib.suppress(StokerError):  # as for a logger: it does not end the run
                    run.note_slowdown(slowdown)

        return Watch(None, None, on_slowdown=note)

    def _read_newest(
        self, checkpoints: CheckpointFolder, identity: Mapping[str, Any], *, allow: Collection[str], strict: bool
    ) -> dict[str, Any] | None:
        """The checkpoint to resume from, as plain values."""
        newest = checkpoints.latest(strict=strict)
        if newest is not None:
            resuming.compare(self._parts, identity, newest, allow=allow, strict=strict)
            resuming.check(self._parts, newest)
            return {**vars(newest), "path": str(newest.path)}
        step = step_reached(read_record(self.folder)) if self.folder is not None and (self.folder / NAME).exists() else 0
        if step:  # to begin again would lose its log too
            raise CheckpointError(
                f"{self.folder} has reached step {step:,}, as its {NAME} says, but {checkpoints.folder} holds no checkpoint. "
                f"Put them back, begin again in another folder, or replace the run (overwrite)."
            )
        return None

    def _rehearse(self, valid: Iterable[Any] | None, stopping: EarlyStopping | None) -> None:
        """Evaluate one batch, so that a loss or metric that cannot be evaluated is known before the first update."""
        if isinstance(valid, Iterator):
            return  # its batches come once
        names = ["loss"]
        if valid is not None:
            before = state_dict.capture()
            values = self.evaluate(Stream(valid, self.device).peek(1))
            state_dict.restore(before)
            names += [f"val_{name}" for name in values]
        if stopping is not None and stopping.metric not in names:
            raise OptionError(
                f"early stopping watches {stopping.metric!r}, but an epoch has {', '.join(names)}.", parameter="early_stopping"
            )

    def _choose(self, engine: Engine, newest: Checkpoint | None, *, resume: bool, allow: Collection[str]) -> None:
        """How steps are computed. A resumed run computes them as before, as another setup gives other bits."""

        def choose() -> list[Any]:
            known = self._known_setup(newest, resume=resume, allow=allow)
            setup, trials = (known, ()) if known is not None else engine.choose()
            return [asdict(setup), [asdict(trial) for trial in trials]]

        setup, trials = self.ranks.first(choose)
        self.setup, self.trials = Setup(**setup), tuple(Trial(**trial) for trial in trials)
        if self.ranks.together:
            self.setup = replace(self.setup, graph=False)
            reason = f"{self.ranks.world_size} ranks train together, and a graph is of one process"
            self.trials = (*self.trials, Trial(name="graph", chosen=False, reason=reason))
            self._parts.say(str(self.trials[-1]))

    def _known_setup(self, newest: Checkpoint | None, *, resume: bool, allow: Collection[str]) -> Setup | None:
        """The setup of the run that is resumed, from its checkpoint or, where it has none yet, its run.json; None for a new run."""
        asked = resuming.asked_setup(self._parts)
        if newest is not None:
            where, setup = str(newest.path), resuming.setup_of(self._parts, newest)
        elif resume and self.folder is not None and (self.folder / NAME).exists():
            where, setup = str(self.folder), recorded_setup(self.folder)
            allowed = [name for name in allow if name.partition(".")[0] == "setup"]
            before = asdict(setup)
            state_dict.check_facts({"setup": before}, {"setup": before | asked}, where=where, allow=allowed)
        else:
            return None
        setup = replace(setup, **asked)
        if isinstance(self.settings.execution.graph, bool):
            setup = replace(setup, graph=self.settings.execution.graph)
        self._check_possible(setup, where)
        return setup

    def _check_possible(self, setup: Setup, where: str) -> None:
        """Refuse the setup of a run that was begun on another machine, where this one cannot do it."""
        refusal = None
        if self.device.type != "cuda" and (setup.precision in ("tf32", "fp16") or setup.graph):
            what = "a CUDA graph" if setup.graph else setup.precision
            refusal = f"it has {what}, but the model is on {self.device.type}"
        elif setup.fused and (reason := refuses_fused(self.optimizer)) is not None:
            refusal = f"it has a fused optimizer, but {reason}"
        if refusal is not None:
            raise OptionError(
                f"the setup of {where} ({setup}) is not possible here: {refusal}. Train where it is, or begin a new run.",
                path=where,
            )


def _logged_step(newest: Checkpoint | None) -> int:
    """The last step whose numbers had been logged when a checkpoint was saved; those after it are logged again."""
    if newest is None:
        return 0
    taken = newest.parts["fit"]["taken"]
    return int(taken[0]["step"]) - 1 if taken else newest.step
