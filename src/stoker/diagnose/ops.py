"""Operations of torch by class: products, reductions, copies; what is in no list, and no view, is elementwise. Names alone."""

from __future__ import annotations

import os
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

import msgspec
import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from stoker.diagnose.hooks import CLOSURE_RANGE, FORWARD
from stoker.diagnose.measurements import Work
from stoker.diagnose.thresholds import RULE

GEMM = frozenset(
    "mm addmm bmm baddbmm addbmm mv addmv dot vdot _scaled_mm convolution _convolution convolution_backward cudnn_convolution "
    "mkldnn_convolution thnn_conv2d _slow_conv2d_forward _slow_conv2d_backward convolution_overrideable mkldnn_linear "
    "mkldnn_linear_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
    "_flash_attention_forward _flash_attention_backward _efficient_attention_forward _efficient_attention_backward "
    "_trilinear grouped_mm _grouped_mm cdist _cdist_forward _cdist_backward linalg_solve linalg_inv".split()
)
REDUCE = frozenset(
    "sum mean var std var_mean std_mean norm linalg_vector_norm _foreach_norm amax amin aminmax max min argmax argmin prod all "
    "any cumsum cumprod logcumsumexp logsumexp _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data "
    "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm "
    "native_batch_norm_backward _native_batch_norm_legit cudnn_batch_norm cudnn_batch_norm_backward _fused_rms_norm "
    "_fused_rms_norm_backward rms_norm nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward "
    "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward mse_loss smooth_l1_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits _fft_r2c _fft_c2r _fft_c2c count_nonzero".split()
)
SEARCH = frozenset("median nanmedian quantile sort topk unique _unique2 searchsorted bincount histc kthvalue mode nonzero".split())
"""Of values by their order: they go through memory many times, and on a GPU far from its speed."""
COPY = frozenset(
    "copy_ _to_copy clone cat stack index index_put_ _index_put_impl_ index_select index_add_ index_copy_ gather scatter scatter_ "
    "scatter_add scatter_add_ embedding embedding_dense_backward _embedding_bag _embedding_bag_backward masked_select "
    "masked_scatter masked_fill masked_fill_ fill_ zero_ slice_backward select_backward constant_pad_nd roll flip repeat "
    "repeat_interleave tril triu take put_ narrow_copy im2col col2im pixel_shuffle pin_memory _pin_memory "
    "arange eye one_hot unfold_backward _foreach_zero_ _foreach_copy_".split()
)
LOOKUPS = frozenset("index index_select gather embedding take masked_select slice_backward select_backward".split())
"""Copies of, or into, a small part of their largest tensor: only the other one is moved."""
VIEWS = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided new_zeros view _unsafe_view reshape _reshape_alias as_strided t "
    "transpose permute expand expand_as squeeze unsqueeze select slice narrow split split_with_sizes chunk unbind detach detach_ "
    "alias resolve_conj resolve_neg contiguous to item _local_scalar_dense linear matmul zeros zeros_like ones ones_like full "
    "full_like is_nonzero result_type set_ resize_ unflatten flatten movedim swapaxes diagonal real imag lift_fresh conv1d conv2d "
    "conv3d layer_norm batch_norm group_norm softmax log_softmax cross_entropy_loss nll_loss nll_loss_nd dropout "
    "scaled_dot_product_attention lstm gru rnn_tanh rnn_relu einsum unfold type_as broadcast_tensors cudnn_is_acceptable "
    "can_cast scalar_tensor multi_head_attention_forward record_stream "
    "max_pool2d avg_pool1d adaptive_avg_pool2d index_fill _conj conj mT mH ravel lift pad".split()
)
"""Of no work of their own: they look at memory another way, allocate it, or call another operation that works."""


def class_of(name: str) -> str | None:
    """gemm, reduce, search, copy or elementwise; None for what does no work itself, and for what is no operation of torch's."""
    space, _, operation = name.rpartition("::")
    if space != "aten":
        return None
    if operation in VIEWS:
        return None
    for kind, names in (("gemm", GEMM), ("reduce", REDUCE), ("search", SEARCH), ("copy", COPY)):
        if operation in names:
            return kind
    return "elementwise"


# Work: what one step does, counted and classed, apart from how long it takes. Runs inside the user's process, on steps of its
# own.
#
# `Counting` and `Profiling` are entered when a batch is handed out and left at the next one; nothing may be timed meanwhile,
# because
# both slow a step down. A count does not depend on the machine's load, which is what gates rest on.

DTYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}
OPTIMIZER_RANGE = "Optimizer.step#"
"""How torch names what it records around the step of an optimizer."""
STEP_RANGE, FORWARD_RANGE = "stoker.step", "stoker.forward"
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel")
"""Activities during which a GPU is busy; the rest are ranges that merely annotate, and would count work twice."""
RUNTIME = ("cuda", "cuLaunch", "cuMem")
"""Calls of the CUDA runtime: torch numbers them apart from operations, and gives them kernels of whatever has the same number."""
MOVING = ("elementwise", "reduce", "copy")
OF_OPTIMIZERS = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad")
UPLOAD = "HtoD"
"""In the name of a copy from the host: batches on their way are no work of a step."""
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
        self.moved_bytes = 0
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
        self.moved_bytes += _moved_bytes(func.name(), args, out)
        return out

    def _count_upload(self, packet: Any, args: tuple[Any, ...], out: Any) -> None:
        source = args[1] if packet is aten.copy_ else args[0]
        if not isinstance(source, torch.Tensor) or source.device.type != "cpu" or out.device.type == "cpu" or source.dim() == 0:
            return  # a number that comes along as a tensor is an argument of a kernel, no batch
        self.h2d_copies += 1
        self.h2d_bytes += source.nbytes
        if out.device.type == "cuda" and source.is_pinned():
            self.h2d_pinned_bytes += source.nbytes


def _moved_bytes(name: str, args: tuple[Any, ...], out: Any) -> int:
    """That an operation reads and writes if moving memory is all it does; an optimizer's, which take lists, are counted apart."""
    operation = name.rpartition("::")[2].partition(".")[0]
    if class_of(f"aten::{operation}") not in MOVING or operation.startswith(OF_OPTIMIZERS):
        return 0
    read, written = [_bytes_of(one) for one in args], [_bytes_of(one) for one in (out if isinstance(out, tuple | list) else (out,))]
    if operation in LOOKUPS:
        return 2 * min(max(read), max(written))
    return sum(read) + sum(written)


def _bytes_of(value: Any) -> int:
    if isinstance(value, tuple | list):
        return sum(map(_bytes_of, value))
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return 0
    return min(value.nbytes, value.untyped_storage().nbytes())  # what is expanded lies there once


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

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._steps = 0
        """That were told by `begin`."""
        self._ranges: list[Any] = []
        self._profile: Any = torch.autograd.profiler.profile(
            use_device="cuda" if device == "cuda" else None,
            use_kineto=True,  # otherwise operations are timed by events around each, and those within others count again
        )
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
            busy, steps = busy_seconds(events), max(1, self._steps)
            self.kernels = kernels / steps
            self.device_seconds = None if busy is None else busy / steps
        else:
            self.shares = step_shares(events)

    def begin(self) -> None:
        """A step begins: its batch is there. The first one starts the profile."""
        if self._steps == 0:
            self.__enter__()
        self._steps += 1
        self._open(STEP_RANGE)

    def edge(self, phase: int) -> None:
        """A phase of the step begins."""
        if phase == FORWARD and len(self._ranges) == 1:
            self._open(FORWARD_RANGE)
        elif phase != FORWARD and len(self._ranges) == 2:
            self._close()

    def end(self) -> None:
        """It has ended; what comes until the next one is of no step."""
        while self._ranges:
            self._close()

    def _open(self, name: str) -> None:
        if self._device == "cpu":
            self._ranges.append(torch.autograd.profiler.record_function(name))
            self._ranges[-1].__enter__()

    def _close(self) -> None:
        self._ranges.pop().__exit__(None, None, None)

    def close(self) -> None:
        """All steps have ended."""
        self.__exit__(None, None, None)


def step_shares(events: Iterable[Any]) -> dict[str, float]:
    """Of a step's time on a CPU by class; `python` is what the forward pass does for long without any operation, and `other` is
    all else that no operation took: torch's own Python, autograd, views.

    Each class has its median over the steps: one that was interrupted names nobody.
    """
    events = [event for event in events if event.device_type.name == "CPU"]
    if not events:
        return {}
    steps = _steps_of(events)
    times: list[dict[str, float]] = [defaultdict(float) for _ in steps]
    begins = [begin for begin, _ in steps]
    for event in events:
        number = bisect_right(begins, event.time_range.start) - 1
        if number < 0 or event.time_range.start >= steps[number][1]:
            continue  # between steps
        inner = _in_optimizer(event)
        if event.name.startswith(OPTIMIZER_RANGE):
            times[number]["optimizer"] += 0.0 if inner else event.cpu_time_total
        elif event.name == CLOSURE_RANGE:
            times[number]["optimizer"] -= event.cpu_time_total if inner else 0.0
        elif (kind := class_of(event.name)) is not None and not inner:
            times[number][kind] += event.self_cpu_time_total
    for begin, pauses in _pauses(events):
        number = bisect_right(begins, begin) - 1
        if number >= 0:
            times[number]["python"] += pauses
    spans = [end - begin for begin, end in steps]
    if len(spans) > 2:  # the first has what starting costs
        times, spans = times[1:], spans[1:]
    medians = {kind: statistics.median(one.get(kind, 0.0) for one in times) for kind in {name for one in times for name in one}}
    whole = max(statistics.median(spans), sum(medians.values()))
    if whole <= 0:
        return {}
    return {kind: time / whole for kind, time in medians.items()} | {"other": 1 - sum(medians.values()) / whole}


def _steps_of(events: Sequence[Any]) -> list[tuple[float, float]]:
    """When each step began and ended; all is one where none were told apart."""
    steps = sorted((event.time_range.start, event.time_range.end) for event in events if event.name == STEP_RANGE)
    whole = min(event.time_range.start for event in events), max(event.time_range.end for event in events)
    return steps or [whole]


def _pauses(events: Sequence[Any]) -> Iterator[tuple[float, float]]:
    """The begin of each forward pass, and the time that it spends in long pauses between operations."""
    works = sorted(
        (event.time_range.start, event.time_range.end) for event in events if event.name.startswith(("aten::", "autograd::"))
    )
    for forward in events:
        if forward.name != FORWARD_RANGE:
            continue
        begin, end = forward.time_range.start, forward.time_range.end
        last, pauses = begin, 0.0
        for start, stop in works[bisect_left(works, (begin, begin)) :]:
            if start >= end:
                break
            pauses += _if_long(start - last)
            last = max(last, stop)
        yield begin, pauses + _if_long(end - last)


def _if_long(pause: float) -> float:
    """All of a long one: an interpreter that computes does not dispatch meanwhile."""
    return pause if pause > RULE.short_pause_us else 0.0


def kernel_shares(events: Iterable[Any]) -> tuple[float, dict[str, float]]:
    """How many kernels there are, and the share of their time by the class of the operation that launched them."""
    times: dict[str, float] = defaultdict(float)
    count = 0
    for event in events:
        if event.is_user_annotation or event.name.startswith((OPTIMIZER_RANGE, CLOSURE_RANGE, *RUNTIME)) or not event.kernels:
            continue
        kind = "optimizer" if _in_optimizer(event) else "search" if _in_search(event) else class_of(event.name) or "other"
        for kernel in event.kernels:
            count += 1
            times[kind] += kernel.duration
    total = sum(times.values())
    return float(count), {kind: time / total for kind, time in times.items()} if total > 0 else {}


def busy_seconds(events: Iterable[Any]) -> float | None:
    """The union of what ran on the device, but for uploads; None where nothing did."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type.name == "CUDA" and _is_work(event) and UPLOAD not in event.name
    )
    busy, end = 0.0, float("-inf")
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy / 1e6 if spans else None


def _is_work(event: Any) -> bool:
    """Whether it runs, and does not merely annotate what runs."""
    activity = getattr(event, "activity_type", None)  # not told by older torches
    if activity is not None:
        return activity in GPU_WORK
    return not event.is_user_annotation and not event.name.startswith((OPTIMIZER_RANGE, CLOSURE_RANGE))


def _in_optimizer(event: Any) -> bool:
    """Whether it is the optimizer's own; what a closure runs within the step of an optimizer is not."""
    for parent in _parents(event):
        if parent.name == CLOSURE_RANGE:
            return False
        if parent.name.startswith(OPTIMIZER_RANGE):
            return True
    return False


def _in_search(event: Any) -> bool:
    """Whether it is a copy, say, that a sort makes for itself."""
    return any(class_of(parent.name) == "search" for parent in _parents(event))


def _parents(event: Any) -> Iterator[Any]:
    parent = event.cpu_parent
    while parent is not None:
        yield parent
        parent = parent.cpu_parent


def work_of(counted: Counting) -> Work:
    """What one step does, as far as counting tells."""
    return Work(
        ops=float(counted.ops),
        flops=counted.flops,
        flops_by_dtype=dict(counted.flops_by_dtype),
        moved_bytes=float(counted.moved_bytes) if counted.ops else None,
        h2d_bytes=float(counted.h2d_bytes),
        h2d_copies=float(counted.h2d_copies),
    )


def with_times(work: Work, profiled: Profiling) -> Work:
    """The same, with what its operations take."""
    return msgspec.structs.replace(work, kernels=profiled.kernels, shares=profiled.shares, device_seconds=profiled.device_seconds)


def main_precision(counted: Counting) -> str:
    """In which type most of the floating-point work was done."""
    return max(counted.flops_by_dtype, key=lambda kind: counted.flops_by_dtype[kind]) if counted.flops else "fp32"
