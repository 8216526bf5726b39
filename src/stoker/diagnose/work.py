"""Work: what one step does, counted and classed, apart from how long it takes. Runs inside the user's process, on steps of its own.

`Counting` and `Profiling` are entered when a batch is handed out and left at the next one; nothing may be timed meanwhile, because
both slow a step down. A count does not depend on the machine's load, which is what gates rest on.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from stoker.clock import now_ns
from stoker.diagnose.measurements import Work
from stoker.diagnose.operations import class_of

DTYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}
OPTIMIZER_RANGE = "Optimizer.step#"
"""How torch names what it records around the step of an optimizer."""
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel")
"""Activities during which a GPU is busy; the rest are ranges that merely annotate, and would count work twice."""
aten: Any = torch.ops.aten
_formulas: Any = flop_counter
# The profiler of torch tells on stderr, which is the user's, when it starts and stops, unless its log is off when it is first used.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that torch dispatches, their floating-point work by type, and uploads to a device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops = 0
        self.flops_by_dtype: dict[str, float] = defaultdict(float)
        self.h2d_copies = 0
        self.h2d_bytes = 0
        self.h2d_pinned_bytes = 0

    @property
    def flops(self) -> float:
        """Of all types."""
        return float(sum(self.flops_by_dtype.values()))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "profiler":  # names for profiles, no work
            return out
        self.ops += 1
        packet = getattr(func, "_overloadpacket", None)
        if packet is aten._to_copy or packet is aten.copy_:
            self._count_upload(packet, args, out)
        elif packet is not None and (formula := _FORMULAS.get(packet) or flop_registry.get(packet)) is not None:
            self.flops_by_dtype[_type_of(args)] += formula(*args, **(kwargs or {}), out_val=out)
        return out

    def _count_upload(self, packet: Any, args: tuple[Any, ...], out: Any) -> None:
        source = args[1] if packet is aten.copy_ else args[0]
        if not isinstance(source, torch.Tensor) or source.device.type != "cpu" or out.device.type == "cpu" or source.dim() == 0:
            return  # a number that comes along as a tensor is an argument of a kernel, no batch
        self.h2d_copies += 1
        self.h2d_bytes += source.nbytes
        if out.device.type == "cuda" and source.is_pinned():
            self.h2d_pinned_bytes += source.nbytes


def _type_of(args: Iterable[Any]) -> str:
    """In which type a product is computed: that of its first tensor of floats."""
    for arg in args:
        if isinstance(arg, torch.Tensor) and arg.is_floating_point():
            if arg.dtype == torch.float32 and arg.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
                return "tf32"
            return DTYPES.get(arg.dtype, str(arg.dtype).removeprefix("torch."))
    return "other"


def _attention_flops(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> float:
    return float(_formulas.sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward_flops(grad: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> float:
    return float(_formulas.sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


def _recurrent_flops(values: Any, of_input: Any, of_state: Any, *args: Any, **kwargs: Any) -> float:
    """Two products a time step: with the input and with the state."""
    return float(2 * values.shape[0] * values.shape[1] * (of_input.numel() + of_state.numel()))


# Operations of CPUs that torch's own table of formulas leaves out.
_FORMULAS: dict[Any, Callable[..., float]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    aten.mkldnn_rnn_layer: _recurrent_flops,
    aten.mkldnn_rnn_layer_backward: lambda *args, **kwargs: 2 * _recurrent_flops(*args, **kwargs),
}


class Profiling:
    """Divides a step by classes of operations: on a CPU its whole time, on a GPU that of its kernels."""

    def __init__(self, device: str = "cpu", *, steps: int = 1) -> None:
        self._device = device
        self._steps = steps
        """That lie between entering and leaving."""
        self._profile: Any = torch.autograd.profiler.profile(use_device="cuda" if device == "cuda" else None)
        self.shares: dict[str, float] = {}
        self.kernels: float | None = None
        self.device_seconds: float | None = None
        """The GPU was busy for so long: what a step takes there at least, also where it waits for the host in between."""

    def __enter__(self) -> Profiling:
        self._profile.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._profile.__exit__(kind, error, trace)
        events = self._profile.function_events or []
        if self._device == "cuda":
            kernels, self.shares = kernel_shares(events)
            busy = busy_seconds(events)
            self.kernels = kernels / self._steps
            self.device_seconds = None if busy is None else busy / self._steps
        else:
            self.shares = step_shares(events, steps=self._steps)


def step_shares(events: Iterable[Any], *, steps: int = 1) -> dict[str, float]:
    """Of a step's time on a CPU by class; `other` is what no operation took: Python, autograd, views.

    Each class has its median over the steps: one that was interrupted names nobody.
    """
    events = [event for event in events if event.device_type.name == "CPU"]
    if not events:
        return {}
    ends = _step_ends(events, steps)
    times: list[dict[str, float]] = [defaultdict(float) for _ in ends]
    for event in events:
        number = bisect_right(ends, event.time_range.start)
        if number == len(ends):
            continue  # after the last step
        if event.name.startswith(OPTIMIZER_RANGE):
            times[number]["optimizer"] += event.cpu_time_total
        elif (kind := class_of(event.name)) is not None and not _in_optimizer(event):
            times[number][kind] += event.self_cpu_time_total
    begins = [min(event.time_range.start for event in events), *ends[:-1]]
    spans = [end - begin for begin, end in zip(begins, ends, strict=True)]
    if len(spans) > 2:  # the first has what starting costs
        times, spans = times[1:], spans[1:]
    medians = {kind: statistics.median(one.get(kind, 0.0) for one in times) for kind in {name for one in times for name in one}}
    whole = max(statistics.median(spans), sum(medians.values()))
    if whole <= 0:
        return {}
    return {kind: time / whole for kind, time in medians.items()} | {"other": 1 - sum(medians.values()) / whole}


def _step_ends(events: Iterable[Any], steps: int) -> list[float]:
    """When each step ended: with the last of its optimizers, or with what was seen last."""
    ends = sorted(event.time_range.end for event in events if event.name.startswith(OPTIMIZER_RANGE))
    each, more = divmod(len(ends), steps)
    if steps > 1 and each and not more:
        return ends[each - 1 :: each]
    return [max(event.time_range.end for event in events)]


def kernel_shares(events: Iterable[Any]) -> tuple[float, dict[str, float]]:
    """How many kernels there are, and the share of their time by the class of the operation that launched them."""
    times: dict[str, float] = defaultdict(float)
    count = 0
    for event in events:
        if event.is_user_annotation or event.name.startswith(OPTIMIZER_RANGE) or not event.kernels:
            continue
        kind = "optimizer" if _in_optimizer(event) else class_of(event.name) or "other"
        for kernel in event.kernels:
            count += 1
            times[kind] += kernel.duration
    total = sum(times.values())
    return float(count), {kind: time / total for kind, time in times.items()} if total > 0 else {}


def busy_seconds(events: Iterable[Any]) -> float | None:
    """The union of what ran on the device; None where nothing did, or where activities cannot be told from annotations."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type.name == "CUDA" and getattr(event, "activity_type", None) in GPU_WORK
    )
    busy, end = 0.0, float("-inf")
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy / 1e6 if spans else None


def _in_optimizer(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if parent.name.startswith(OPTIMIZER_RANGE):
            return True
        parent = parent.cpu_parent
    return False


def work_of(counted: Counting, profiled: Profiling | None = None, *, peak_bytes: int | None = None) -> Work:
    """What one step does; both were around one step."""
    return Work(
        ops=float(counted.ops),
        kernels=profiled.kernels if profiled is not None else None,
        flops=counted.flops,
        flops_by_dtype=dict(counted.flops_by_dtype),
        h2d_bytes=float(counted.h2d_bytes),
        h2d_copies=float(counted.h2d_copies),
        peak_bytes=peak_bytes,
        shares=profiled.shares if profiled is not None else {},
    )


def main_precision(counted: Counting) -> str:
    """In which type most of the floating-point work was done."""
    return max(counted.flops_by_dtype, key=lambda kind: counted.flops_by_dtype[kind]) if counted.flops else "fp32"


def optimizer_ways(optimizer: torch.optim.Optimizer, *, at_most: float = 0.5, largest_bytes: int = 1 << 30) -> dict[str, float]:
    """Seconds of a step of the optimizer as it is (`now`) and `fused`, on tensors of the same shapes, taken in turn.

    Empty where it has no fused way, is fused already, or its parameters are too large to have twice. The user's weights and states
    are not touched, and no hook of theirs is called.
    """
    from stoker.train.optimizer import FUSED

    groups = optimizer.param_groups
    weights = [weight for group in groups for weight in group["params"] if weight.grad is not None]
    plain = all(weight.is_floating_point() and not weight.is_sparse and not weight.grad.is_sparse for weight in weights)
    if type(optimizer) not in FUSED or any(group.get("fused") for group in groups) or not weights or not plain:
        return {}
    if 8 * sum(weight.nbytes for weight in weights) > largest_bytes:
        return {}
    step: Any = type(optimizer).step
    bare = getattr(step, "__wrapped__", step)
    twins = {"now": _twin(optimizer), "fused": _twin(optimizer, fused=True, foreach=None)}
    times: dict[str, list[float]] = {name: [] for name in twins}
    begin = now_ns()
    while now_ns() - begin < at_most * 1e9 or len(times["now"]) < 4:
        for name, twin in twins.items():
            times[name].append(_timed(lambda twin=twin: bare(twin), weights[0].device))  # type: ignore[misc]
    return {name: min(taken[1:]) for name, taken in times.items()}  # whatever else the machine does, the least is the step's own


def _twin(optimizer: torch.optim.Optimizer, **changes: Any) -> torch.optim.Optimizer:
    """The same optimizer over zeros of the same shapes."""
    groups = []
    for group in optimizer.param_groups:
        twins = []
        for weight in group["params"]:
            if weight.grad is not None:
                twin = torch.zeros_like(weight, requires_grad=True)
                twin.grad = torch.zeros_like(weight.grad)
                twins.append(twin)
        if twins:
            rate = float(group["lr"])
            groups.append({**group, **changes, "params": twins, "lr": rate})
    kind: Any = type(optimizer)
    with contextlib.suppress(KeyError):
        for group in groups:
            del group["initial_lr"]  # of a schedule, which the twin has not
    return kind(groups)  # type: ignore[no-any-return]


def _timed(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = now_ns()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (now_ns() - start) / 1e9
