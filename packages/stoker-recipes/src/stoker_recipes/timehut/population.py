"""A population: K encoders that are trained in the same matmuls, from one update to the next. One encoder is a population of one.

Members differ in weights, seeds, methods, temperatures, margins and in the series they are trained on; they share sizes, batch size and
optimizer. No member affects another: the optimizer works value by value, so a member that becomes NaN stays alone.

The weights that count are the mean of all iterates, the initial weights included. Each update adds the weights that it starts from to a
sum, so the mean needs no work after the optimizer.

On a GPU the whole update is one CUDA graph of Triton kernels (`gpu_step`): it takes its crops from tables on the device by a counter on the
device. On a CPU views are trimmed to the steps that the crop has.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stoker.errors import OptionError
from stoker.extend import Array
from stoker_recipes.timehut.batches import Crops, Tables, draw_crops, gather_batch, updates_per_epoch
from stoker_recipes.timehut.losses import LossTerms, contrastive_loss
from stoker_recipes.timehut.model import (
    RowLayout,
    encode,
    encode_views,
    expand,
    gather_views,
    initial_weights,
    kept_positions,
    make_layout,
    pool_over_time,
)
from stoker_recipes.timehut.settings import EncoderSettings, temperatures

SHARED = ("batch_size", "lr", "weight_decay", "hidden", "depth", "width", "dropout", "max_train_length", "compat")
"""Settings that all members of a population share."""
ENCODED_VALUES = 1 << 24
"""Activations of one part of `encode_series`, so that its memory does not grow with the data."""


class EncoderPopulation(nn.Module):
    """K members in training. `make_population` makes one.

    `weights` and `total` (the sum of all earlier iterates) are (K, P); `update` counts the updates so far.
    """

    total: Tensor
    update: Tensor

    def __init__(
        self, weights: Tensor, layout: RowLayout, settings: Sequence[EncoderSettings], terms: LossTerms, tables: Tables
    ) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)
        self.register_buffer("total", torch.zeros_like(weights))
        self.register_buffer("update", torch.zeros(1, dtype=torch.int64, device=weights.device))
        self.layout, self.settings, self.terms, self.tables = layout, tuple(settings), terms, tables
        self.optimizer = new_optimizer(self)
        self.losses: list[Tensor] = []
        self._graph: _Graph | None = None

    @property
    def num_members(self) -> int:
        """K."""
        return len(self.weights)

    @property
    def updates(self) -> int:
        """Updates so far."""
        return int(self.update)

    @property
    def num_updates(self) -> int:
        """Updates that the tables have."""
        return len(self.tables.tau)

    def batch(self, update: int) -> dict[str, Tensor]:
        """The batch of an update, trimmed to the steps that its crops have."""
        if self.num_members == 1:
            return gather_views(self.tables, update, self.layout)
        bounds = self.tables.bounds[update]
        low, high = int(bounds[:, 0].min()), int(bounds[:, 3].max())
        number = torch.tensor([update], device=self.weights.device)
        return gather_batch(self.tables, number, low=low, high=high, width=int((bounds[:, 2] - bounds[:, 1]).max()))

    def batch_on_gpu(self, update: Tensor) -> dict[str, Tensor]:
        """The batch of an update (1,), of one shape for all updates; with kernels only its number, as they read the tables."""
        if self.has_kernels:
            return {"update": update}
        return gather_batch(self.tables, update, low=0, high=self.tables.length, width=self.tables.length)

    @property
    def has_kernels(self) -> bool:
        """Whether an update is made by the Triton kernels."""
        if self.weights.device.type != "cuda" or self.weights.dtype != torch.float32 or importlib.util.find_spec("triton") is None:
            return False
        from stoker_recipes.timehut import gpu_step

        return gpu_step.are_able(self.layout, self.tables)

    def prepare(self, *, precision: str | None = None) -> None:
        """Compile the Triton kernels, if an update is made by them: several at a time, where the first update would go one by one."""
        if self.has_kernels:
            from stoker_recipes.timehut import gpu_step

            with _matmuls(precision, self.weights.device):
                gpu_step.compile_kernels(
                    self.weights, self.update, self.layout, self.tables, self.terms, dropout=self.settings[0].dropout
                )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The loss of each member, (K,); in training the weights are added to the sum of iterates."""
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                self.total += self.weights
                self.update += 1
        return self.losses_of(self.weights, batch)

    def losses_of(self, weights: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """The loss of each of these weights."""
        if len(batch) == 1:
            from stoker_recipes.timehut import gpu_step

            return gpu_step.losses(weights, batch["update"], self.layout, self.tables, self.terms, dropout=self.settings[0].dropout)
        members, width = len(weights), batch["steps"].shape[-1]
        if "input" in batch:
            z = encode_views(weights, self.layout, batch)
        else:
            keep, crop, begin = batch["keep"], batch["crop"], batch["begin"]
            z = encode(weights, self.layout, batch["x"], keep, crop=crop, select=lambda h: _cut(h, begin, width))
        if self.settings[0].dropout:
            place = {name: batch[name] for name in ("steps", "key", "update")}
            z = z * dropout_scale(z.shape, z.dtype, **place, length=self.tables.length, rate=self.settings[0].dropout)
        z = z.view(members, -1, 2, width, z.shape[-1])
        return contrastive_loss(z, batch["length"], batch["tau"], self.terms, target=batch.get("target"))

    def advance(self, updates: int, *, precision: str = "tf32") -> Tensor:
        """Train until `updates` updates in total; returns the last loss of each member, (K,).

        Args:
            updates: Updates in total, at most as many as the tables have.
            precision: Of matmuls on a GPU: "tf32" or "fp32".
        """
        if not self.updates <= updates <= self.num_updates:
            raise OptionError.expected("updates", updates, f"{self.updates} (done) to {self.num_updates} (planned)")
        self.train()
        last = torch.full((self.num_members,), float("nan"), device=self.weights.device)
        with _matmuls(precision, self.weights.device):
            if self.weights.device.type == "cuda":
                self._graph = self._graph or _Graph(self)
                return self._graph.replay(updates - self.updates)
            for update in range(self.updates, updates):
                last = self(self.batch(update))
                self.optimizer.zero_grad(set_to_none=True)
                last.sum().backward()
                self.optimizer.step()
        return last.detach()

    def average(self) -> Tensor:
        """The mean of all iterates, (K, P)."""
        return (self.total + self.weights.detach()) / (self.update + 1)

    def average_whole(self) -> Tensor:
        """The mean of all iterates as rows of whole encoders.

        A dropped tap has no gradient; only weight decay changes it, by the factor q per update. So its mean is known without training.
        """
        q, n = 1 - self.settings[0].lr * self.settings[0].weight_decay, self.updates + 1
        mean = 1.0 if q == 1 else (1 - q**n) / (n * (1 - q))
        dropped = torch.stack([initial_weights(self.layout.size, setting.seed) for setting in self.settings]) * mean
        return expand(self.average().cpu(), self.layout, dropped)

    def keep(self, indices: Sequence[int]) -> None:
        """Continue with these members only."""
        chosen = torch.as_tensor(list(indices), device=self.weights.device, dtype=torch.int64)
        old = self.optimizer.state[self.weights]
        self.weights = nn.Parameter(self.weights.detach()[chosen].contiguous())
        self.total = self.total[chosen].contiguous()
        self.settings = tuple(self.settings[i] for i in indices)
        self.terms, self.tables = self.terms.take(chosen), self.tables.take(chosen)
        self.optimizer, self._graph = new_optimizer(self), None
        if old:
            moments = {name: old[name][chosen].contiguous() for name in ("exp_avg", "exp_avg_sq")}
            self.optimizer.state[self.weights] = {"step": old["step"].clone(), **moments}

    def encode(self, data: Array, *, precision: str = "tf32") -> Array:
        """Representations of whole series by the averaged weights: (K, N, width). `data` is (N, T, D) and may have NaN."""
        fits = data.shape[1] <= self.tables.length
        rows = self.average() if fits else self.average_whole().to(self.weights.device)
        with _matmuls(precision, rows.device):
            return encode_series(rows, self.layout if fits else make_layout(self.layout.size), data)


def make_population(
    data: Array,
    settings: Sequence[EncoderSettings],
    *,
    subsets: Sequence[Array] | None = None,
    crop_seeds: Sequence[int] | None = None,
    targets: Sequence[Array | None] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> EncoderPopulation:
    """A population at its start.

    Args:
        data: Series (N, T, D); NaN is missing.
        settings: One per member.
        subsets: For each member the numbers of the series that it is trained on. Default: all.
        crop_seeds: Seeds of crops and dropout; equal ones are common random numbers, which make members comparable. Default: the seeds
            of the members.
        targets: SoftCLT's instance targets (N, N), for members that have them.
        device: Where it is trained.
        dtype: Of weights and activations.

    Raises:
        OptionError: Members that cannot share matmuls.
    """
    first, count = settings[0], len(settings)
    for name in SHARED:
        if any(getattr(setting, name) != getattr(first, name) for setting in settings):
            raise OptionError(f"{name} differs between members; all members of a population have the same one.", parameter=name)
    subsets = [np.arange(len(data))] * count if subsets is None else list(subsets)
    crop_seeds = [setting.seed for setting in settings] if crop_seeds is None else list(crop_seeds)
    targets = [None] * count if targets is None else list(targets)
    if len({min(first.batch_size, len(rows)) for rows in subsets}) > 1:
        raise OptionError(
            "members have batches of different sizes, as some have fewer series than batch_size. Choose a smaller batch_size.",
            parameter="batch_size",
        )
    plans = [(seed, rows.tobytes()) for seed, rows in zip(crop_seeds, subsets, strict=True)]
    groups = 1 if len(set(plans)) == 1 else count
    per_epoch = [updates_per_epoch(len(rows), first.batch_size) for rows in subsets]
    updates = max(setting.num_updates(data.size, each) for setting, each in zip(settings, per_epoch, strict=True))

    def draw(plan: tuple[int, int]) -> Crops:
        return draw_crops(num_series=plan[1], length=data.shape[1], batch_size=first.batch_size, updates=updates, seed=plan[0],
                          max_length=first.max_train_length)  # fmt: skip

    sizes = [(seed, len(rows)) for seed, rows in zip(crop_seeds, subsets, strict=True)][:groups]
    with ThreadPoolExecutor() as pool:  # most of the time NumPy fills masks, outside of the interpreter's lock
        drawn_crops = dict(zip(dict.fromkeys(sizes), pool.map(draw, dict.fromkeys(sizes)), strict=True))
    crops = [drawn_crops[size] for size in sizes]
    rows = np.stack([subset[crop.rows] for subset, crop in zip(subsets, crops, strict=False)], 1)
    epochs = [-(-updates // each) for each in per_epoch]
    tau = [
        np.repeat(temperatures(setting.schedule, many, low=setting.min_tau, high=setting.max_tau, period=setting.t_max), each)[
            :updates
        ]
        for setting, many, each in zip(settings, epochs, per_epoch, strict=True)
    ]
    missing: Array = np.asarray(np.isnan(data).any(-1))
    where = torch.device(device)

    def on_device(values: Array, kind: torch.dtype | None = None) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device=where, dtype=kind)

    tables = Tables(
        data=on_device(np.where(missing[..., None], 0, data), dtype),
        given=on_device(~missing) if missing.any() else None,
        rows=on_device(rows),
        start=on_device(np.stack([crop.start for crop in crops], 1)),
        bounds=on_device(np.stack([crop.bounds for crop in crops], 1)),
        mask=on_device(np.stack([crop.mask for crop in crops], 1)),
        tau=on_device(np.stack(tau, 1), dtype),
        target=None if all(target is None for target in targets) else on_device(_batch_targets(targets, rows), dtype),
        keys=on_device(np.array(crop_seeds[:groups], np.int64)),
    )
    layout = make_layout(first.size(data.shape[2]), tables.length)
    positions = kept_positions(layout)
    drawn = {seed: initial_weights(layout.size, seed)[positions] for seed in {setting.seed for setting in settings}}
    weights = torch.stack([drawn[setting.seed] for setting in settings]).to(device=where, dtype=dtype)
    return EncoderPopulation(weights, layout, settings, _terms(settings, where, dtype), tables)


def targets_of(values: Array, settings: EncoderSettings) -> Array | None:
    """SoftCLT's instance targets; None for members without any."""
    from stoker_recipes.timehut.dtw import instance_targets  # numba, which only SoftCLT needs

    return instance_targets(values, tau=settings.tau_instance) if settings.tau_instance > 0 else None


def _terms(settings: Sequence[EncoderSettings], device: torch.device, dtype: torch.dtype) -> LossTerms:
    def each(name: str) -> Tensor:
        return torch.tensor([getattr(setting, name) for setting in settings], device=device, dtype=dtype)

    return LossTerms(
        amc_instance=each("amc_instance"),
        amc_temporal=each("amc_temporal"),
        margin=each("amc_margin"),
        tau_temporal=each("tau_temporal"),
        compat=settings[0].compat,
        has_amc=any(setting.amc_instance or setting.amc_temporal for setting in settings),
        has_soft_temporal=any(setting.tau_temporal for setting in settings),
    )


def _batch_targets(targets: Sequence[Array | None], rows: Array) -> Array:
    """The instance targets among the series of each batch, (U, K, B, B)."""
    hard = np.eye(rows.shape[-1], dtype=np.float32)
    of_members = []
    for k, target in enumerate(targets):
        chosen = rows[:, min(k, rows.shape[1] - 1)]
        of_members.append(np.broadcast_to(hard, (*chosen.shape, chosen.shape[-1])) if target is None
                          else target[chosen[:, :, None], chosen[:, None, :]])  # fmt: skip
    return np.stack(of_members, 1).astype(np.float32)


class _Cut(torch.autograd.Function):
    """`width` steps of h from step `begin` on, both ways a gather: no atomics, so the same bits every time."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, begin: Tensor, width: int) -> Tensor:
        ctx.save_for_backward(begin)
        ctx.before = h.shape[2]
        index = (begin[:, None] + torch.arange(width, device=h.device)).clamp(max=h.shape[2] - 1)
        return h.gather(2, index[:, None, :, None].expand(len(h), h.shape[1], -1, h.shape[3]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (begin,), gradient = ctx.saved_tensors, gradients[0]
        index = torch.arange(ctx.before, device=gradient.device) - begin[:, None]
        is_inside = (index >= 0) & (index < gradient.shape[2])
        place = index.clamp(0, gradient.shape[2] - 1)[:, None, :, None].expand(*gradient.shape[:2], -1, gradient.shape[3])
        return torch.where(is_inside[:, None, :, None], gradient.gather(2, place), 0), None, None


def _cut(h: Tensor, begin: Tensor, width: int) -> Tensor:
    return _Cut.apply(h, begin, width)  # type: ignore[no-any-return, no-untyped-call]


def dropout_scale(
    shape: torch.Size, dtype: torch.dtype, *, steps: Tensor, key: Tensor, update: Tensor, length: int, rate: float
) -> Tensor:
    """Dropout as factors 0 or 1 / (1 - rate), (G, N, W, C): a hash of seed, update and place.

    Without a generator, the factors of a member do not depend on the other members, the device, or how views are trimmed, and a run
    is resumed without random states.
    """
    _, rows, _, width = shape
    place = torch.arange(rows, device=steps.device, dtype=torch.int32)[:, None, None] * (length * width)
    place = place + steps.to(torch.int32)[:, None] * width + torch.arange(width, device=steps.device, dtype=torch.int32)
    mixed = _mix((key.to(torch.int32) * -1640531527) ^ (update.to(torch.int32) * 40503 + 1))
    bits = _mix(place * -1028477379 + mixed[:, None, None, None])
    return (bits >= int(rate * 2**31)).to(dtype) / (1 - rate)


def _mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash, in place; the result is from 0 to 2^31 - 1."""
    for shift, mask, factor in ((16, 0xFFFF, 2146121005), (15, 0x1FFFF, -2073254261)):
        x.bitwise_xor_((x >> shift).bitwise_and_(mask)).mul_(factor)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).bitwise_and_(0x7FFFFFFF)


def new_optimizer(population: EncoderPopulation) -> torch.optim.AdamW:
    """AdamW over the weights of all members: one fused kernel."""
    settings, is_cuda = population.settings[0], population.weights.device.type == "cuda"
    return torch.optim.AdamW(
        [population.weights], lr=settings.lr, weight_decay=settings.weight_decay, fused=True, capturable=is_cuda
    )


class _Graph:
    """One update of a population as a CUDA graph; its crops come from tables on the device, by a counter on the device."""

    def __init__(self, population: EncoderPopulation) -> None:
        self.population = population
        self.last = torch.full((population.num_members,), float("nan"), device=population.weights.device)
        weights, total, update = (tensor.detach().clone() for tensor in (population.weights, population.total, population.update))
        state = population.optimizer.state[population.weights]
        before = {name: value.clone() for name, value in state.items()}
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        population.prepare()
        with torch.cuda.stream(stream):
            self._step()  # a warm-up: libraries allocate and kernels are compiled
            population.update.copy_(update)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()
        with torch.no_grad():  # the warm-up is no update
            population.weights.copy_(weights)
            population.total.copy_(total)
            population.update.copy_(update)
            state = population.optimizer.state[population.weights]
            for name, value in state.items():
                value.copy_(before[name]) if name in before else value.zero_()

    def _step(self) -> None:
        population = self.population
        batch = population.batch_on_gpu(population.update.clone())
        population.optimizer.zero_grad(set_to_none=True)
        losses = population(batch)
        losses.sum().backward()
        population.optimizer.step()
        self.last.copy_(losses.detach())

    def replay(self, updates: int) -> Tensor:
        """Replay this number of updates; returns the losses of the last."""
        for _ in range(updates):
            self.graph.replay()
        return self.last.clone()


def encode_series(rows: Tensor, layout: RowLayout, data: Array) -> Array:
    """Representations of whole series: the largest value over time of each dimension, (K, N, width)."""
    missing: Array = np.asarray(np.isnan(data).any(-1))
    per_series = len(rows) * data.shape[1] * max(3 * layout.size.hidden, 2 * layout.size.width)
    part = max(1, ENCODED_VALUES // per_series)
    parts = []
    with torch.no_grad():
        for begin in range(0, len(data), part):
            some, gaps = data[begin : begin + part], missing[begin : begin + part]
            x = torch.from_numpy(np.where(gaps[..., None], 0, some)).to(rows)[None]
            keep = torch.from_numpy(~gaps).to(rows.device)[None] if gaps.any() else None
            parts.append(pool_over_time(encode(rows, layout, x, keep)))
    result: Array = torch.cat(parts, 1).cpu().numpy()
    return result


@contextlib.contextmanager
def _matmuls(precision: str | None, device: torch.device) -> Iterator[None]:
    """Matmuls of a GPU in TF32 within the block, or in full float32; None leaves them as they are."""
    if precision not in ("tf32", "fp32", None):
        raise OptionError.expected("precision", precision, "'tf32' or 'fp32'")
    if device.type != "cuda" or precision is None:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
