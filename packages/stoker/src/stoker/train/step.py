"""One training step: the micro-batches of an update, and the update of the weights.

    EagerStep    micro-batches forward and backward, then one update, protected by the NaN guard of `numerics`
    Readout      the numbers of each step, read some steps later, so that the host never waits for them

The device itself writes the rows of a readout. A full window of them is copied to the host while the steps continue, and is read when
the copy has ended. On a CPU the same rows are simply there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stoker.errors import TrainError
from stoker.train.distributed import Joint, is_shard, local
from stoker.train.ema import Ema
from stoker.train.loss import LossFunction, num_rows, num_samples, outcome_of
from stoker.train.numerics import NanGuard, Precision, Scale, autocast
from stoker.train.optimizer import bare_step
from stoker.train.ordered_sums import OrderedSums


@dataclass(eq=False)
class EagerStep:
    """One update, eagerly: `micro` for each micro-batch, then `update`.

    The gradient of an update is the mean over all samples of its micro-batches (and ranks), however they were dealt out.
    """

    model: nn.Module
    loss: LossFunction
    optimizer: torch.optim.Optimizer
    readout: Readout
    _: KW_ONLY
    device: torch.device
    precision: Precision
    weighted: bool
    max_grad_norm: float | None = None
    ema: Ema | None = None
    scale: Scale | None = None
    skips: bool = False
    joint: Joint | None = None

    def __post_init__(self) -> None:
        optimizer, device = self.optimizer, self.device
        self._autocast = autocast(self.precision, device)
        self._step_optimizer = bare_step(optimizer)
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        # With a loss scale, or where bad steps are skipped, each step is judged alone.
        self.guard = NanGuard(self.model, optimizer, device, clears=self.skips or self.scale is not None)
        self._is_sharded = any(map(is_shard, self._parameters))
        self._keeps_gradients = False
        self._zero, self._loss_sum, self._weight_sum = (torch.zeros((), device=device) for _ in range(3))
        self._rows = 0
        self._last_loss = self._zero
        self._last_weight: torch.Tensor | float = 0.0
        self._scalars: dict[str, torch.Tensor] = {}
        self.guard.bind()

    def micro(self, batch: Any) -> None:
        """Add the gradient of a micro-batch."""
        self.guard.statistics.keep()
        with self._autocast:
            loss, self._scalars, _ = outcome_of(self.loss(self.model, batch))
        self._last_loss = loss.detach()
        if self.weighted:
            if not self._rows:  # weights are counted in whole batches: sums of samples would overflow the range of fp16
                rows = num_rows(batch) if self.joint is None else self.joint.ranks.most([num_rows(batch)])[0]
                self._rows = 1 << (max(1, rows) - 1).bit_length()  # a power of two: which one it is changes no bit
            weight = num_samples(batch) / self._rows
            loss = loss * weight
            if not isinstance(self.joint, OrderedSums):
                self._loss_sum += loss.detach()
                self._weight_sum += weight
            self._last_weight = weight
        (loss if self.scale is None else loss * self.scale.value).backward()  # type: ignore[no-untyped-call]
        if isinstance(self.joint, OrderedSums):
            self._add_ordered(self.joint, loss.detach())

    def _add_ordered(self, joint: OrderedSums, loss: torch.Tensor) -> None:
        """Add what this batch and those of the other ranks have left: gradients, losses and weights, in the order of the ranks."""
        weight = torch.as_tensor(self._last_weight, dtype=torch.float32, device=self.device)
        own = [torch.where(weight > 0, value * weight, 0.0) for value in self._scalars.values()]
        rows = joint.add(self._parameters, torch.stack([weight, loss, *own]).float())
        for row in rows:
            self._weight_sum += row[0]
            self._loss_sum += row[1]
        if rows and self._scalars:
            weight, _, *sums = torch.stack(rows).sum(0).unbind()
            self._scalars = {name: value / weight for name, value in zip(self._scalars, sums, strict=True)}

    def update(self) -> bool:
        """Update the weights; False where the host knows that it must not."""
        if self.joint is not None:
            self.joint.join(self._parameters)
        gradients = [gradient for parameter in self._parameters if (gradient := parameter.grad) is not None]
        if self._is_sharded:
            gradients = [local(gradient) for gradient in gradients]
        if not gradients:
            raise TrainError("no weight has a gradient: the loss does not depend on any of the optimizer's parameters.")
        guard = self.guard
        loss = self._check(gradients)
        norm = self._zero if self.max_grad_norm is None else self._clip_to(gradients, self.max_grad_norm)
        if guard.decide():
            self._step_optimizer()
            if self.ema is not None:
                self.ema.update(guard.device_flag)
        guard.settle()
        if self.joint is not None:
            guard.statistics.join(self.joint)
        self.readout.record({"loss": loss, "norm": norm, "skipped": guard.flag, **self._scalars})
        self._clear(gradients)
        return guard.is_good

    def _check(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Undo scale and weights, and raise the flag where the loss, a gradient or a buffer is not finite; returns the loss."""
        inverse: torch.Tensor | None
        if self.weighted:
            loss_sum, weight_sum = self._loss_sum, self._weight_sum
            if self.joint is not None and not isinstance(self.joint, OrderedSums):  # gradients are means over the ranks too
                loss_sum, weight_sum = self._join_numbers(self.joint)
            self._last_loss = loss_sum / weight_sum
            inverse = (weight_sum if self.scale is None else weight_sum * self.scale.value).reciprocal()
        else:
            inverse = None if self.scale is None else self.scale.value.reciprocal()
        loss = self._last_loss.float()
        self.guard.check(gradients, loss, inverse=inverse)
        if self.joint is not None:
            self.joint.raise_flag(self.guard.flag)
        return loss

    def _join_numbers(self, joint: Joint) -> tuple[torch.Tensor, torch.Tensor]:
        """The sums of loss and weight as means over the ranks; further numbers as means over their samples."""
        given, device = self._last_weight, self._loss_sum.device
        weight = given.float() if isinstance(given, torch.Tensor) else torch.full((), given, device=device)  # neither waits
        # A rank without any sample has no such number; its weight is zero, and 0 * nan would not be.
        own = [torch.where(weight > 0, value * weight, 0.0) for value in self._scalars.values()]
        totals = torch.stack([self._loss_sum, self._weight_sum, weight, *own])
        joint.ranks.mean(totals)
        loss_sum, weight_sum, weight, *others = totals.unbind()
        self._scalars = {name: value / weight for name, value in zip(self._scalars, others, strict=True)}
        return loss_sum, weight_sum

    def _clip_to(self, gradients: list[torch.Tensor], most: float) -> torch.Tensor:
        """As `clip_grad_norm_` does it; a norm that overflows raises the flag."""
        norm = nn.utils.get_total_norm(gradients, foreach=True)
        if self.joint is not None:
            norm = self.joint.norm(norm)
        self.guard.check_finite([norm])
        torch._foreach_mul_(gradients, torch.clamp(most / (norm + 1e-6), max=1.0))
        return norm

    def _clear(self, gradients: list[torch.Tensor]) -> None:
        if self.scale is not None:
            self.scale.update(self.guard.flag)
        if self.weighted:
            self._loss_sum.zero_()
            self._weight_sum.zero_()
        if self._keeps_gradients:
            torch._foreach_zero_(gradients)
        else:
            for parameter in self._parameters:
                parameter.grad = None

    def keep_gradients(self) -> None:
        """Let gradients stay where they are from now on, as graphs know them by their address."""
        self._keeps_gradients = True
        self.guard.statistics.ignore_rest()
        self.discard()

    def preserve(self) -> Callable[[], None]:
        """Remember what a step changes beside the model and the optimizer, and return what puts it back.

        That may be in the middle of an update: gradients that stay where they are keep what micro-batches have added.
        """
        scale = [] if self.scale is None else list(self.scale.state_dict().values())
        average = [] if self.ema is None else self.ema.tensors()
        changed = [*scale, *average, self.guard.flag, self._loss_sum, self._weight_sum, *self.readout.tensors()]
        kept = [(tensor, tensor.clone()) for tensor in changed]
        gradients = {parameter: parameter.grad.clone() for parameter in self._parameters if parameter.grad is not None}

        def restore() -> None:
            for tensor, before in kept:
                tensor.copy_(before)
            if not self._keeps_gradients:
                self.optimizer.zero_grad(set_to_none=True)
                return
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.copy_(gradients[parameter]) if parameter in gradients else parameter.grad.zero_()

        return restore

    def discard(self) -> None:
        """Forget micro-batches that no update has taken in."""
        self._loss_sum.zero_()
        self._weight_sum.zero_()
        self.guard.flag.zero_()
        self.optimizer.zero_grad(set_to_none=not self._keeps_gradients)


class Window(NamedTuple):
    """The numbers of some steps, the first of them `first`."""

    first: int
    names: tuple[str, ...]
    rows: Tensor
    """`[steps, names]`, on the host."""

    def column(self, name: str) -> list[float]:
        """One number of each step."""
        values: list[float] = self.rows[:, self.names.index(name)].tolist()
        return values

    def means(self, kept: list[bool]) -> dict[str, float]:
        """The mean of each number over some of the steps."""
        return dict(zip(self.names, self.rows[torch.tensor(kept)].double().mean(0).tolist(), strict=True))


class _UnderWay(NamedTuple):
    first: int
    device_rows: Tensor
    host_rows: Tensor
    copied: Any


class Readout:
    """A row of numbers per step; the first step says which."""

    def __init__(self, device: torch.device, *, capacity: int) -> None:
        self._names: tuple[str, ...] = ()
        self._known: Collection[str] = ()
        self._capacity = capacity
        self._rows = torch.zeros(capacity, 0, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._on_device = device.type == "cuda"
        self._host_rows: list[list[float]] = []  # of a CPU: numbers that need not be waited for
        self._under_way: deque[_UnderWay] = deque()
        self.first = 0
        """The step of the first row of the window."""
        self.count = 0
        """Rows in the window; code that replays a recorded graph counts here."""

    def record(self, values: Mapping[str, Tensor]) -> None:
        """Write the row of a step. Device work only, also within a graph; `count` is the caller's to move."""
        if values.keys() != self._known:
            self._begin_columns(values)
        if self._on_device:
            self._rows.index_copy_(0, self._place, torch.stack([value.float() for value in values.values()])[None])
            self._place.add_(1)
        else:
            self._host_rows[self.count :] = [[value.item() for value in values.values()]]

    def _begin_columns(self, values: Mapping[str, Tensor]) -> None:
        if self._names:
            raise TrainError(
                f"the loss function returns {', '.join(values)} now, but {', '.join(self._names)} before. Return the same."
            )
        self._names, self._known = tuple(values), dict(values).keys()
        self._rows = torch.zeros(self._capacity, len(values), device=self._rows.device)

    def tensors(self) -> list[Tensor]:
        """What steps must find as it was when they are tried out; rows past the place are written over."""
        return [self._place]

    def latest(self) -> Tensor | None:
        """The row of the last step, where it can be had without waiting."""
        if self._on_device:
            return self._under_way[-1].host_rows[-1] if self._under_way and self._under_way[-1].copied.query() else None
        return self._filled()[-1] if self.count else None

    def _filled(self) -> Tensor:
        """The rows of the window so far."""
        if self._on_device:
            return self._rows[: self.count]
        return torch.tensor(self._host_rows, dtype=torch.float32).reshape(self.count, len(self._names))

    def take(self) -> None:
        """End the window, and begin a new one with the next step."""
        if not self.count:
            return
        rows = self._filled().clone()
        host, copied = rows, None
        if self._on_device:
            host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            host.copy_(rows, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        self._under_way.append(_UnderWay(self.first, rows, host, copied))
        self.begin(self.first + self.count)

    def drop(self) -> None:
        """Forget windows that have not been read: what came after an update that must not take place."""
        self._under_way.clear()

    def begin(self, first: int) -> None:
        """Begin an empty window with this step."""
        self.first, self.count, self._host_rows = first, 0, []
        self._place.zero_()

    def ready(self, *, wait: bool = False) -> list[Window]:
        """Windows that have arrived since the last call; with `wait` all that were taken."""
        windows = []
        while self._under_way:
            first, _, rows, copied = self._under_way[0]
            if copied is not None and not (wait or copied.query()):
                break
            if copied is not None:
                copied.synchronize()
            self._under_way.popleft()
            windows.append(Window(first, self._names, rows))
        return windows

    def window(self) -> Window:
        """The window that grows, on a device where one need not wait for it."""
        return Window(self.first, self._names, self._filled())

    def state_dict(self) -> dict[str, Any]:
        """What has not been read yet: windows under way and the one that grows, as tensors on the device."""
        under_way = [{"first": window.first, "rows": window.device_rows} for window in self._under_way]
        return {"names": list(self._names), "under_way": under_way, "first": self.first, "rows": self._filled()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what had not been read when the state was saved."""
        self._under_way.clear()
        if state["names"]:
            self._names = tuple(state["names"])
            self._known = dict.fromkeys(self._names).keys()
            # A window may have been longer before, and continues to the end of one of now.
            self._capacity += len(state["rows"])
            self._rows = torch.zeros(self._capacity, len(self._names), device=self._rows.device)
        for window in state["under_way"]:
            self._under_way.append(_UnderWay(window["first"], window["rows"], window["rows"].cpu(), None))
        rows = state["rows"]
        self.begin(state["first"])
        self.count = len(rows)
        if self._on_device:
            self._rows[: self.count].copy_(rows)
            self._place.fill_(self.count)
        else:
            self._host_rows = rows.tolist()


class StepWork:
    """How steps are done: as torch does them. The loop knows nothing else of them."""

    def __init__(self, step: EagerStep, readout: Readout) -> None:
        self._step = step
        self._readout = readout

    def source(self, batches: Iterable[Any]) -> Iterator[Any]:
        """What to iterate over, one entry per micro-batch: the batches themselves."""
        return iter(batches)

    def micro(self, entry: Any) -> None:
        """Do a micro-batch: forward and backward."""
        self._step.micro(entry)

    def update(self) -> bool:
        """End the update that the micro-batches since the last one belong to; False where it was skipped."""
        is_good = self._step.update()
        self._readout.count += 1
        return is_good
