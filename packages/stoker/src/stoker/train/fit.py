"""The training loop: epochs, validation, logging, saving, callbacks, signals and time limits.

    Fit         one call of `Trainer.fit`
    Result      what it returns
    evaluate    the mean loss and the metrics of all batches; predict: the predictions
    Signals     Ctrl-C, SIGTERM and SIGHUP end a run after its step, when it is saved

Guarantee: the first signal changes nothing but `asked`, so no step and no save is torn; a Ctrl-C after it ends at once. A signal
that was ignored before (as under nohup) stays ignored, and all handlers are put back.
"""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, Self

import msgspec
import psutil
import torch
from torch import nn

from stoker._batch import entry_of
from stoker._clock import now_ns
from stoker._kernels import compile_ns
from stoker._text import html_text, readable_seconds
from stoker.errors import NonFiniteError, OptionError, TrainError
from stoker.train import resume, state_dict
from stoker.train.autotune import Setup, Trial
from stoker.train.callbacks import Callback, CallbackReport, methods_of
from stoker.train.checkpoint import CheckpointFolder
from stoker.train.early_stopping import EarlyStopping
from stoker.train.engine import Engine
from stoker.train.loggers import Log
from stoker.train.loss import LossFunction, num_samples, outcome_of
from stoker.train.metrics import AllGather, Metric
from stoker.train.resume import Progress, Taken
from stoker.train.settings import Components
from stoker.train.step import StepWork, Window
from stoker.train.stream import Stream
from stoker.watch.cause import Slowdown
from stoker.watch.loop import Watch

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """A context manager around a loop. Only the main thread can have handlers: in any other it does nothing."""

    def __init__(self) -> None:
        self.asked: int | None = None
        """The number of the first signal that came, to this rank or another one; or None."""
        self.received: int | None = None
        """The number of the first signal that came to this process, or None."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                # None is a handler that is not Python's: it could not be put back.
                if handler is not None and handler is not signal.SIG_IGN:
                    self._before[number] = handler
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def wait(self, seconds: float) -> None:
        """Wait until a signal comes to this process, at most this long."""
        end = now_ns() + int(seconds * 1e9)
        while self.received is None and now_ns() < end:
            time.sleep(0.02)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        if self.asked is None:
            self.asked = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt


@dataclass(frozen=True, kw_only=True)
class Result:
    """What `Trainer.fit` returns.

    Args:
        stopped: Why it ended: `"finished"` (all epochs), `"early"` (early stopping), `"budget"` (`max_seconds`),
            `"signal"` or `"callback"`.
        step: Updates in total, those before a resume included.
        epoch: Epochs in total.
        metrics: Metrics of the last epoch; those of the validation begin with `val_`.
        best: The best value of the metric that early stopping watches (`val_loss` without early stopping).
        best_step: The update of the best value.
        skipped: Updates that the guard skipped.
        seconds: Time of the run, that before a resume included.
        wait: Share of this call's time that was spent waiting for batches.
        first_wait_seconds: How long this call waited for its first batch; a part of `wait`.
        setup: How steps were computed.
        trials: What was measured to choose the setup.
        folder: Folder of the run.
        slowdowns: Lasting slowdowns of this call, with their causes.

    Example:
        >>> import torch, stoker
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> batches = [(torch.ones(8, 3), torch.zeros(8, 1))]
        >>> result = stoker.Trainer(model, torch.nn.MSELoss(), optimizer, progress=False).fit(batches, valid=batches, epochs=2)
        >>> sorted(result.metrics), result.best_step
        (['loss', 'val_loss'], 2)
    """

    stopped: Stopped
    step: int
    epoch: int
    metrics: dict[str, float]
    best: float | None
    best_step: int | None
    skipped: int
    seconds: float
    wait: float
    setup: Setup
    trials: tuple[Trial, ...]
    folder: Path | None
    slowdowns: tuple[Slowdown, ...] = ()
    first_wait_seconds: float = 0.0

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        best = f", best {self.best:.4g} at step {self.best_step:,}" if self.best is not None and self.best_step is not None else ""
        return (
            f"{self.stopped} after {self.step:,} steps and {self.epoch:,} epochs in {readable_seconds(self.seconds)}: "
            f"{numbers}{best}; waited for data {self.wait:.1%} of the time"
        )

    def _repr_html_(self) -> str:
        return html_text("\n".join([str(self), f"setup: {self.setup}; folder: {self.folder or 'none'}", *map(str, self.slowdowns)]))


def _outputs(
    model: nn.Module, function: Callable[[nn.Module, Any], Any], stream: Stream, context: AbstractContextManager[Any]
) -> Generator[tuple[Any, Any]]:
    """Yield each batch, and what a function says of the model in evaluation mode and the batch."""
    stream.set_epoch(0)  # so that sums come in one order, whatever was evaluated before
    was_training = model.training
    model.eval()
    try:
        for loaded in stream.batches:
            batch = stream.place(loaded)
            with context:
                answer = function(model, batch)
            yield batch, answer
    finally:
        model.train(was_training)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loss: LossFunction,
    stream: Stream,
    *,
    metrics: Mapping[str, Metric],
    context: AbstractContextManager[Any],
    gather: AllGather | None = None,
) -> dict[str, float]:
    """The means over all samples, added up on the device and read once at the end; a feed begins the same epoch each time."""
    for metric in metrics.values():
        metric.reset()
    sums: dict[str, torch.Tensor] = {}
    weight_sum: torch.Tensor | None = None
    with closing(_outputs(model, loss, stream, context)) as outputs:
        for batch, answer in outputs:
            outcome = outcome_of(answer)
            weight = torch.as_tensor(num_samples(batch), device=outcome.loss.device).double()
            weight_sum = weight if weight_sum is None else weight_sum + weight
            for name, value in {"loss": outcome.loss, **outcome.scalars}.items():
                # A batch without any sample has no mean; its weight is zero, and 0 * nan would not be.
                part = torch.where(weight > 0, value.double() * weight, 0)
                sums[name] = part if name not in sums else sums[name] + part
            if metrics and not {"prediction", "target"} <= outcome.whole.keys():
                raise TrainError(
                    f"metrics ({', '.join(metrics)}) need what the model predicts: let the loss function return a dict with 'loss', "
                    f"'prediction' and 'target'."
                )
            for metric in metrics.values():
                metric.update(**{"valid": entry_of(batch, "valid"), **outcome.whole})
    if weight_sum is None:
        raise TrainError("there is no batch to evaluate: the iterable is empty.")
    totals = torch.stack([weight_sum, *sums.values()])
    if gather is not None:
        totals = torch.stack(gather(totals)).sum(0)
        for metric in metrics.values():
            metric.gather(gather)
    values: list[float] = totals.tolist()
    means = {name: value / values[0] for name, value in zip(sums, values[1:], strict=True)}
    return means | {name: metric.compute() for name, metric in metrics.items()}


OF_SAMPLES = ("sample", "series", "store")
"""Entries of a feed that say which sample a row is."""


@torch.no_grad()
def predict(
    model: nn.Module,
    function: Callable[[nn.Module, Any], Any],
    stream: Stream,
    *,
    is_loss: bool,
    context: AbstractContextManager[Any],
) -> dict[str, torch.Tensor]:
    """Return the predictions of all samples, by a loss function that returns them or by a function that returns nothing else."""
    parts: dict[str, list[torch.Tensor]] = {}
    with closing(_outputs(model, function, stream, context)) as outputs:
        for batch, answer in outputs:
            tensors = dict(outcome_of(answer).whole) if is_loss else {"prediction": answer}
            if not isinstance(tensors.get("prediction"), torch.Tensor):
                what = "the loss function returns no 'prediction'" if is_loss else f"forward returned a {type(answer).__name__}"
                raise TrainError(f"{what}; expected a tensor with a row per sample. Pass forward=lambda model, batch: model(…).")
            valid = entry_of(batch, "valid")
            tensors |= {name: rows for name in OF_SAMPLES if isinstance(rows := entry_of(batch, name), torch.Tensor)}
            for name in ("prediction", "target", *OF_SAMPLES):
                if name in tensors:
                    rows = tensors[name].detach() if valid is None else tensors[name].detach()[valid]
                    parts.setdefault(name, []).append(rows.cpu())
    if not parts:
        raise TrainError("there is no batch to predict: the iterable is empty.")
    return {name: torch.cat(rows) for name, rows in parts.items()}


# A fit: one training run in progress. It goes through epochs, and between updates checks what else is due.
#
# Between two updates the host compares two numbers and reads the clock; everything else (logging, saving, signals, the end of a
# budget) happens when a comparison says so. All that a fit consists of is its state: a checkpoint holds it, so a fit that resumes
# from one does what it would have done.

Stopped = Literal["finished", "early", "budget", "signal", "callback"]

LOOK_NS = 100_000_000
"""How often the host checks signals, the budget and the bar."""
MOST_OVERFLOWS = 100
"""Updates in a row that fp16 may skip while it looks for a scale that does not overflow."""
BATCHES_AHEAD = 8
"""An epoch begins to make the batches of the next one this number of batches before its end."""
MOST_RATE = 3e38
_END = object()


@dataclass(eq=False)
class Fit:
    """One call of `Trainer.fit`."""

    parts: Components
    engine: Engine
    work: StepWork
    train: Stream
    _: KW_ONLY
    setup: Setup
    epochs: int
    log: Log
    signals: Signals
    max_seconds: float | None = None
    validate: Callable[[], dict[str, float]] | None = None
    stopping: EarlyStopping | None = None
    checkpoints: CheckpointFolder | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    note_saved: Callable[[int], None] | None = None
    """Called once, when the first checkpoint is on the disk."""
    callbacks: Sequence[Callback] = ()
    watch: Watch[Any] | None = None
    keeps_best: bool = False
    """Whether the best weights are kept in memory."""
    best_weights: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        parts = self.parts
        self.progress = Progress()
        self._settings, self._ranks = parts.settings, parts.ranks
        self._readout, self._rate = self.engine.readout, self.engine.rate
        self._process = psutil.Process()
        self._stateful = {"scale": self.engine.scale, "stopping": self.stopping}
        self._uses_scale = self.setup.precision == "fp16"  # then updates may be held back because a gradient overflowed
        self._device = parts.device
        self._reads_late = parts.ranks.together and parts.device.type == "cuda"
        self._agreed = (0, now_ns())
        self._look_step = 0  # with ranks: the step at which they look, as their clocks differ
        self._total_updates = self.train.num_updates(parts.settings.grad_accum_steps, self.epochs)
        self._taken: deque[Taken] = deque()
        self._overflows = 0
        self._began_ns = self._last_ns = self._window_ns = now_ns()
        self.wait_ns = self.first_wait_ns = self._window_wait_ns = self._watched_wait_ns = 0
        self._next_step = self._next_look_ns = 0
        self._saved_step = -1
        names = ("on_batch_end", "on_epoch_end", "on_save")
        self._on_batch, self._on_epoch, self._on_save = (methods_of(self.callbacks, name) for name in names)
        self._stop_asked = False  # by a callback
        self._pass_state: Any = None
        self._pass_batches = self._pass_step = 0  # where the pass over the batches began

    def run(self) -> Stopped:
        """Train to the end, or until something stops it."""
        self.parts.model.train()
        self._plan()
        self._agreed = (self.progress.step, now_ns())
        self._look_step = self.progress.step + 1 if self._ranks.together else 0
        while self.progress.epoch < self.epochs:
            stopped = None if self.progress.is_epoch_done else self._run_epoch()
            stopped = stopped or self._end_epoch()
            if stopped is not None:
                return stopped
        return "finished"

    def _run_epoch(self) -> Stopped | None:
        progress, work, train, grad_accum_steps = self.progress, self.work, self.train, self._settings.grad_accum_steps
        if not train.keeps_state:  # else the state counts epochs itself
            train.set_epoch(progress.epoch)
        self._pass_state, self._pass_batches, self._pass_step = train.state(), progress.batches, progress.step
        before = now_ns()
        entries = train.passes(work.source)
        self.wait_ns += now_ns() - before  # a DataLoader starts its workers here
        place = train.place if train.needs_placing else None
        schedule, pending, pacing = self.parts.schedule, 0, train.pacing
        num_batches = train.num_batches
        ahead = max(1, num_batches - BATCHES_AHEAD) if num_batches and progress.epoch + 1 < self.epochs else 0
        if self.watch is not None:
            self.watch.begin()
        while True:
            before, compiled_before, paced = now_ns(), compile_ns(), pacing.count
            entry = next(entries, _END)
            # Where a feed waited for the device, that had work all the while. Kernels are compiled once, in the first batch.
            if pacing.count == paced:
                self.wait_ns += max(0, now_ns() - before - (compile_ns() - compiled_before))
            self.first_wait_ns = self.first_wait_ns or self.wait_ns
            if entry is _END:
                break
            if not pending and schedule is not None:
                factor = schedule(progress.step, self._total_updates)
                check_rates([rate * factor for rate in self.parts.rates], f"at update {progress.step:,}")
                self._rate.set(factor)
            if self.parts.micro_batches is not None:  # the random numbers of a batch are then its own, whichever rank does it
                number = pending * self._ranks.world_size + self._ranks.rank
                state_dict.seed_batch(self._settings.seed or 0, progress.step, number)
            work.micro(entry if place is None else place(entry))
            progress.batches += 1
            pending += 1
            if progress.batches == ahead:
                train.prefetch_next_epoch()
            if pending == grad_accum_steps:
                pending = 0
                stopped = self._after(work.update())
                if stopped is not None:
                    return stopped
        # What is left over of the epoch is an update of its own: nothing of it leaks into the next epoch.
        return self._after(work.update()) if pending else None

    def _after(self, is_good: bool) -> Stopped | None:
        """What has to be done after an update; mostly nothing."""
        self.progress.step += 1
        if self.watch is not None:
            self.watch.step(self.wait_ns - self._watched_wait_ns)
            self._watched_wait_ns = self.wait_ns
        if not is_good and self._settings.guard == "stop" and not self._uses_scale:
            self._judge(self._readout.window())  # others are judged when their window is read
        if self._on_batch:
            self._call(self._on_batch, self.progress.epoch, {})
            if self._stop_asked and not self._ranks.together:  # ranks agree when they look
                return self._look()
        if self.progress.step < self._next_step and (
            self.progress.step < self._look_step
            if self._look_step
            else now_ns() < self._next_look_ns and self.signals.asked is None
        ):
            return None
        return self._look()

    def _call(self, methods: Sequence[Callable[[CallbackReport], Any]], epoch: int, metrics: Mapping[str, float]) -> None:
        """Call callbacks; what they raise ends the run."""

        def stop() -> None:
            self._stop_asked = True

        def read_loss() -> float:
            return self._readout.window().column("loss")[-1]

        report = CallbackReport(
            step=self.progress.step,
            epoch=epoch,
            lr=self._rate.first,
            metrics=metrics,
            read_loss=read_loss,
            ask_to_stop=stop,
        )
        for method in methods:
            method(report)

    def _look(self) -> Stopped | None:
        step, save_every = self.progress.step, self._settings.checkpoints.every
        now = now_ns()
        saves = self.checkpoints is not None and save_every is not None and step % save_every == 0
        # A GPU's numbers arrive at their own time, but all ranks must judge the same ones: those of the looks before.
        windows = self._readout.ready(wait=True) if self._reads_late else []
        if step >= self._next_step:
            self._take()
        for window in windows if self._reads_late else self._readout.ready():
            self._report(window)
        if saves and not self.train.is_done(self._pass_state, self.progress.batches):  # else at the end of the epoch
            self.save()
        if self.note_saved is not None and self.checkpoints is not None and self.checkpoints.last is not None:
            self.note_saved(self._saved_step)  # once: that there are checkpoints is all that must be known
            self.note_saved = None
        self.log.draw(step, self._readout.latest(), wait=self._share(now), epoch=self.progress.epoch)
        self._plan()
        return self._asked_to_leave()

    def _plan(self) -> None:
        """When to look again: at the step that ends a window or is saved, or a moment from now."""
        settings, step = self._settings, self.progress.step
        periods = [every for every in (settings.logging.every, settings.checkpoints.every) if every is not None]
        self._next_step = min(step - step % every + every for every in periods)
        left = LOOK_NS if self.max_seconds is None else int(min(LOOK_NS, 1e9 * (self.max_seconds - self.seconds)))
        self._next_look_ns = now_ns() + left

    def _share(self, now: int) -> float:
        return (self.wait_ns - self._window_wait_ns) / max(1, now - self._window_ns)

    def _take(self) -> None:
        """End the window of numbers, and remember what the host knows of it."""
        if not self._readout.count:
            return
        now = now_ns()
        rate = self._readout.count / max(1e-9, (now - self._window_ns) / 1e9)
        self._taken.append(
            Taken(step=self.progress.step, epoch=self.progress.epoch, rate=rate, wait=self._share(now), lr=self._rate.first)
        )
        self._window_ns, self._window_wait_ns = now, self.wait_ns
        self._readout.take()

    def _report(self, window: Window) -> None:
        """Log a window that has arrived, and judge it."""
        taken = self._taken.popleft()
        self._judge(window)
        took_place = [not flag for flag in window.column("skipped")]
        means = window.means(took_place)
        if any(took_place):
            self.progress.epoch_loss += means["loss"] * sum(took_place)
            self.progress.epoch_updates += sum(took_place)
        if self._settings.max_grad_norm is None:
            del means["norm"]  # it was not computed
        means["skipped"] = float(len(took_place) - sum(took_place))
        on_gpu = self._device.type == "cuda"
        memory = torch.cuda.memory_reserved() if on_gpu else self._process.memory_info().rss
        self.log.write(
            taken.step,
            {"epoch": taken.epoch, **means, "lr": taken.lr, "rate": taken.rate, "wait": taken.wait, "memory": float(memory)},
        )

    def _judge(self, window: Window) -> None:
        """Stop at an update that did not take place, or count it, as the guard says."""
        held_back = [index for index, flag in enumerate(window.column("skipped")) if flag]
        if not held_back:
            self._overflows = 0
            return
        if self._uses_scale and all(math.isfinite(loss) for loss in window.column("loss")):
            self._overflows += len(held_back)
            if self._overflows < MOST_OVERFLOWS:
                return
        step = window.first + held_back[0]
        if self._settings.guard == "skip":
            self.progress.skipped += len(held_back)
            if self.progress.skipped == len(held_back):
                warnings.warn(f"{self._describe(step, window)} The update was skipped, as will be others like it.", stacklevel=2)
            return
        self._stop_at(step, window)

    def _describe(self, step: int, window: Window) -> str:
        loss = window.rows[step - window.first][0]
        has_buffers = next(self.parts.model.buffers(), None) is not None
        inner = "a gradient or a buffer of the model (such as a running variance)" if has_buffers else "a gradient"
        what = f"the loss is {loss:g}" if not math.isfinite(loss) else f"{inner} is not finite"
        first = (step - self._pass_step) * self._settings.grad_accum_steps
        blamed = self.train.blame(self._pass_state, first, self._settings.grad_accum_steps)
        if self._ranks.together:
            blamed = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(self._ranks.collect(blamed)))
        return f"{what} at update {step:,} of epoch {self.progress.epoch:,} ({blamed})."

    def _stop_at(self, step: int, window: Window) -> None:
        """Go back to before the update that must not take place, save, and say where it came from."""
        text = self._describe(step, window)
        taken = (step - self._pass_step) * self._settings.grad_accum_steps
        self.progress.step, self.progress.batches = step, self._pass_batches + taken
        self._readout.begin(step)
        self._readout.drop()
        self._taken.clear()
        where = ""
        if self.checkpoints is not None:
            self.save(stream_state=self.train.state_after(self._pass_state, taken), wait=True)
            self._ranks.meet()  # so that no rank leaves, and is missed, before all is saved
            where = f" and are saved in {self.checkpoints.folder}"
        raise NonFiniteError(
            f"{text} The weights are those before it{where}. If the data has missing values, pass "
            "observed=True to the feed (data.observed: true in a configuration): NaN becomes 0, with a mask. Otherwise fix the data, lower "
            "the learning rate, or pass guard='skip'.",
            parameter="guard",
        )

    def _end_epoch(self) -> Stopped | None:
        progress, save_every = self.progress, self._settings.checkpoints.every
        self._take()
        for window in self._readout.ready(wait=True):
            self._report(window)
        progress.is_epoch_done = True
        values = {"loss": progress.epoch_loss / progress.epoch_updates} if progress.epoch_updates else {}
        if self.validate is not None:
            values |= {f"val_{name}": value for name, value in self.validate().items()}
        self._window_ns, self._window_wait_ns = now_ns(), self.wait_ns
        values = self._ranks.share(values)  # nothing that decides may differ by a bit
        improved = stop = False
        if self.stopping is not None:
            if self.stopping.metric not in values:
                raise OptionError(
                    f"early stopping watches {self.stopping.metric!r}, but an epoch has {', '.join(values)}.",
                    parameter="early_stopping",
                )
            improved, stop = self.stopping.update(values[self.stopping.metric], progress.epoch)
        self.log.write(
            progress.step,
            {"epoch": progress.epoch} | {f"epoch_{name}" if name == "loss" else name: value for name, value in values.items()},
        )
        progress.last = values
        if improved and self.stopping is not None:
            progress.best, progress.best_step = values[self.stopping.metric], progress.step
            if self.keeps_best:
                self.best_weights = resume.take_weights(self.parts)
        progress.epoch, progress.batches, progress.is_epoch_done = progress.epoch + 1, 0, False
        progress.epoch_loss, progress.epoch_updates = 0.0, 0
        is_over = stop or progress.epoch == self.epochs
        is_due = save_every is None or progress.step % save_every == 0
        if improved or is_over or is_due:
            self.save(best=improved)
        if self._on_epoch:
            self._call(self._on_epoch, progress.epoch - 1, values)
        if progress.epoch == self.epochs:
            self._stop_asked = False  # it ends anyway
        return "early" if stop else self._asked_to_leave()

    def _asked_to_leave(self) -> Stopped | None:
        """Why the run ends before its end, if it does. Then it is saved: nothing that has been done is lost."""
        step, now = self.progress.step, now_ns()
        asked = self.signals.asked
        is_over = self.max_seconds is not None and self.seconds >= self.max_seconds
        is_stopped = self._stop_asked
        if self._ranks.together:  # what any rank was asked; they look again together, when the first one's clock would
            pace = (step - self._agreed[0]) * LOOK_NS // max(1, now - self._agreed[1])
            mine = [asked or 0, int(is_over), pace if self._ranks.is_first else 0, int(is_stopped)]
            number, over, ahead, stopped = self._ranks.most(mine)
            self._agreed, self._look_step = (step, now), step + max(1, ahead)
            asked, is_over, is_stopped = number or None, bool(over), bool(stopped)
            self.signals.asked = asked
        if asked is None and not is_over and not is_stopped:
            return None
        if self.checkpoints is not None and self._saved_step != step:
            self.save(wait=True)
        return "signal" if asked is not None else "callback" if is_stopped else "budget"

    @property
    def wait_share(self) -> float:
        """The part of this call's time that went by waiting for batches."""
        return self.wait_ns / max(1, now_ns() - self._began_ns)

    @property
    def seconds(self) -> float:
        """Time of the training so far, with that before it was resumed."""
        now = now_ns()
        self.progress.seconds += (now - self._last_ns) / 1e9
        self._last_ns = now
        return self.progress.seconds

    def save(self, *, best: bool = False, wait: bool = False, stream_state: Any = None) -> None:
        """Save everything, in the background unless `wait` is set."""
        if self.checkpoints is None:
            return
        self.progress.seconds = self.seconds
        self.progress.is_epoch_done = self.train.is_done(self._pass_state, self.progress.batches)
        parts = resume.take(self.parts, self._stateful)
        parts["fit"] = {
            "progress": msgspec.structs.asdict(self.progress),
            "readout": self._readout.state_dict(),
            "taken": [msgspec.structs.asdict(taken) for taken in self._taken],
            "overflows": self._overflows,
        }
        own = {"stream": stream_state if stream_state is not None else self.train.state(), "random": state_dict.capture()}
        first, *others = self._ranks.collect(own)
        parts["fit"] |= {**first, "others": others}
        facts = {**resume.comparable(self.parts), **self.identity, "setup": asdict(self.setup)}
        facts |= {"epoch": self.progress.epoch, "metrics": dict(self.progress.last)}
        if self._ranks.is_first:
            self.checkpoints.save(self.progress.step, parts, facts, best=best, wait=wait or bool(self._on_save))
        self._saved_step = self.progress.step
        for on_save in self._on_save:
            on_save(self.progress.step, dict(self.progress.last))

    def load(self, parts: dict[str, Any]) -> None:
        """Resume where a checkpoint was saved."""
        state = parts["fit"]
        resume.put(self.parts, self._stateful, parts)
        self.progress = Progress(**state["progress"])
        windows = state["readout"]["under_way"][: len(state["taken"])]  # the host knows nothing of others
        self._readout.load_state_dict({**state["readout"], "under_way": windows})
        self._taken = deque(Taken(**taken) for taken in state["taken"])
        self._overflows = state["overflows"]
        states = [state, *state["others"]]
        is_known = self._ranks.rank < len(states)
        own = states[self._ranks.rank] if is_known else state
        self.train.resume(own["stream"], taken=self.progress.batches)
        if self.parts.micro_batches is not None:  # it may have been saved by another number of ranks
            self.progress.batches = self.train.batches_taken(self.progress.batches)
        self._saved_step = self.progress.step
        if is_known:
            state_dict.restore(own["random"])
        else:
            state_dict.derive(state["random"], self._ranks.rank)


def check_rates(rates: Sequence[float], when: str) -> None:
    """Refuse learning rates that weights cannot be multiplied with."""
    if not all(0 <= rate <= MOST_RATE for rate in rates):
        raise OptionError(
            f"the learning rate {when} is {max(rates, key=abs):g}; expected a number from 0 that float32 can hold.", parameter="key"
        )
