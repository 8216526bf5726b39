"""What one step does: operations by class, floating-point work, bytes moved, uploads. Runs in the user's process, on steps of its own.

`class_of` names the class of an operation. `Counting` counts what torch dispatches: counts do not depend on the machine's load, so
`stoker gate` rests on them. `Profiling` divides the time of some steps by class. Both are entered when a batch is handed out and left
at the next one; nothing may be timed meanwhile, because both slow a step down. `ProgramProfilers` keeps the program's own profilers from
recording.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from stoker._disk import write_file
from stoker.diagnose.hooks import CLOSURE_RANGE, DTYPES, FORWARD, replace
from stoker.diagnose.measurements import Work
from stoker.diagnose.thresholds import RULE

# Classes of operations. torch says most itself: its FLOP registry has matmuls and convolutions, its tags mark pointwise operations
# and reductions, schemas mark views, and dispatch keys mark operations that only call others. The lists below are what it leaves out.

GEMM = frozenset(
    "addbmm mv addmv dot vdot _grouped_mm grouped_mm _scaled_grouped_mm _scaled_mm_v2 _int_mm _weight_int8pack_mm "
    "_addmm_activation _trilinear _cdist_forward _cdist_backward mkldnn_linear mkldnn_linear_backward "
    "mkldnn_linear_backward_input mkldnn_linear_backward_weights _linear_pointwise _mkl_linear mkldnn_convolution "
    "cudnn_convolution_transpose cudnn_convolution_relu cudnn_convolution_add_relu _convolution_pointwise _slow_conv2d_forward "
    "_slow_conv2d_backward slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d "
    "slow_conv_transpose3d _conv_depthwise2d conv_depthwise3d conv_tbc convolution_overrideable "
    "convolution_backward_overrideable mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward miopen_rnn "
    "miopen_rnn_backward miopen_convolution _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward".split()
)
"""Matmuls, convolutions and recurrent layers that torch's FLOP registry leaves out."""
REDUCE = frozenset(
    "sum nansum mean prod var std var_mean std_mean amax amin aminmax max min argmax argmin all any logsumexp count_nonzero "
    "linalg_vector_norm norm logcumsumexp cumsum cumprod _softmax _log_softmax _softmax_backward_data "
    "_log_softmax_backward_data _masked_softmax _safe_softmax native_layer_norm native_group_norm native_batch_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update "
    "_batch_norm_no_update batch_norm_backward cudnn_batch_norm miopen_batch_norm batch_norm_stats batch_norm_elemt "
    "batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_backward_reduce batch_norm_backward_elemt "
    "_fused_rms_norm _weight_norm_interface renorm nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward "
    "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
    "adaptive_avg_pool3d_backward fractional_max_pool2d fractional_max_pool3d adaptive_max_pool2d adaptive_max_pool3d "
    "mkldnn_max_pool2d mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits "
    "multi_margin_loss soft_margin_loss _aminmax cummax cummin _cummax_helper _cummin_helper _logcumsumexp trace dist _fft_r2c "
    "_fft_c2r _fft_c2c segment_reduce".split()
)
"""Reductions, normalizations, pools and losses. Only newer releases of torch have a tag for some of them."""
SEARCH = frozenset(
    "median nanmedian quantile sort topk unique _unique _unique2 unique_dim unique_consecutive searchsorted bucketize isin "
    "bincount histc histogram kthvalue mode nonzero nonzero_static".split()
)
"""By the order of values: they go through memory many times, and on a GPU far from its speed."""
COPY = frozenset(
    "copy _to_copy _copy_from _reshape_copy _lazy_clone clone cat _chunk_cat stack _stack index _unsafe_index "
    "_unsafe_masked_index index_put _unsafe_index_put _index_put_impl index_select index_add index_copy index_fill index_reduce "
    "gather scatter scatter_add scatter_reduce embedding embedding_dense_backward _embedding_bag _embedding_bag_forward_only "
    "_embedding_bag_backward _embedding_bag_dense_backward masked_select masked_scatter masked_fill fill zero slice_backward "
    "select_backward slice_scatter select_scatter diagonal_scatter as_strided_scatter constant_pad_nd roll flip rot90 repeat "
    "repeat_interleave tril triu take put narrow_copy im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle _pin_memory "
    "arange range linspace eye diag_embed diagonal_backward unfold_backward max_unpool2d max_unpool3d _pack_padded_sequence "
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d".split()
)
ELEMENTWISE = frozenset(
    "native_dropout _fused_dropout bernoulli normal uniform random exponential geometric cauchy log_normal poisson glu "
    "_prelu_kernel hardswish log_sigmoid_forward log_sigmoid_backward _transform_bias_rescale_qkv rrelu_with_noise floor_divide "
    "addr complex _add_relu _fused_adam _fused_adamw _fused_sgd _fused_adagrad _amp_foreach_non_finite_check_and_unscale "
    "_amp_update_scale _masked_scale _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell "
    "grid_sampler_2d grid_sampler_3d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d "
    "upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa gelu elu leaky_relu hardtanh hardshrink "
    "softshrink hardsigmoid softplus mse_loss_backward smooth_l1_loss_backward huber_loss_backward soft_margin_loss_backward "
    "binary_cross_entropy_backward".split()
)
"""Element by element, or from a few elements, and without the tag."""
NO_WORK = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like "
    "new_ones full full_like new_full rand rand_like randn randn_like randint randint_like scalar_tensor _unsafe_view detach_ "
    "lift lift_fresh resize_ resize_as_ set_ squeeze_ unsqueeze_ t_ transpose_ as_strided_ unsafe_split unsafe_split_with_sizes "
    "_local_scalar_dense record_stream is_pinned is_same_size is_set_to _assert_async _assert_tensor_metadata _fused_sdp_choice "
    "_cudnn_init_dropout_state".split()
)
"""They allocate, create a view, or read one value. What fills new memory is an operation of its own."""
NO_OPERATIONS = ("profiler", "prim", "c10d", "_c10d_functional")
"""Namespaces of markers, and of communication, which is measured apart."""


@cache
def class_of(name: str) -> str | None:
    """The class of an operation: gemm, reduce, search, copy, elementwise or other."""
    # None where it does no work itself (a view, an allocation, an operation that only calls others), and for names of ranges that are
    # not operations. An operation of which nothing is known, such as a custom one, is "other".
    namespace, _, operation = name.rpartition("::")
    if not namespace or namespace in NO_OPERATIONS or not torch._C._jit_get_schemas_for_operator(name):
        return None
    return _class_of(namespace, operation)


def _class_of(namespace: str, operation: str) -> str | None:
    packet = getattr(getattr(torch.ops, namespace), operation, None)
    if packet in flop_registry or operation in GEMM:
        return "gemm"
    if operation in NO_WORK:
        return None
    base = operation.removeprefix("_foreach_")
    base = base if base.endswith("__") else base.removesuffix("_")
    for kind, names in (("reduce", REDUCE), ("search", SEARCH), ("copy", COPY), ("elementwise", ELEMENTWISE)):
        if operation in names or base in names:
            return kind
    # What torch dispatches: not overloads that write to `out`, nor those of TorchScript alone.
    named = [(overload, getattr(packet, overload)) for overload in (packet.overloads() if packet is not None else [])]
    overloads = [
        overload for name, overload in named if not name.endswith("out") and torch._C._dispatch_has_kernel(overload.name())
    ]
    aliases = [value.alias_info for overload in overloads for value in overload._schema.returns]
    only_views = any(alias is not None and not alias.is_write for alias in aliases)  # of memory that it was given, unchanged
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    only_calls = all(  # made of other operations on every device
        has(overload.name(), "CompositeImplicitAutograd") and not has(overload.name(), "CPU") and not has(overload.name(), "CUDA")
        for overload in overloads
    )
    if only_views or only_calls:
        return None
    tags = {tag.name for overload in overloads for tag in overload.tags}
    for tag, kind in (("view_copy", "copy"), ("reduction", "reduce"), ("pointwise", "elementwise")):
        if tag in tags:
            return kind
    # Variants without a tag: in place, over a list, the backward pass.
    for variant in (base, base.removesuffix("_backward")):
        if variant != operation and torch._C._jit_get_schemas_for_operator(f"{namespace}::{variant}"):
            return _class_of(namespace, variant) or "other"
    return "other"


OPTIMIZER_RANGE = "Optimizer.step#"
"""How torch names the range around the step of an optimizer."""
STEP_RANGE, FORWARD_RANGE = "stoker.step", "stoker.forward"
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel")
"""Activities during which a GPU is busy; the others are annotations, which would count work twice."""
RUNTIME = ("cuda", "cuLaunch", "cuMem")
"""Calls of the CUDA runtime: torch numbers them apart from operations, so they get kernels of unrelated operations."""
UPLOAD = "HtoD"  # in the name of a copy from the host: batches on their way are not work of a step
aten: Any = torch.ops.aten
_formulas: Any = flop_counter
# The profiler of torch logs to the user's stderr when it starts and stops, unless its log is off when it is first used.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that counts what torch dispatches: operations, floating-point work by type, uploads, rows of embeddings."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops = 0
        self.flops_by_dtype: dict[str, float] = defaultdict(float)
        self.h2d_copies = 0
        self.h2d_bytes = 0
        self.table_rows = 0
        self.table_rows_used = 0

    @property
    def flops(self) -> float:
        """Of all types."""
        return float(sum(self.flops_by_dtype.values()))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "profiler":  # names for profiles are not work
            return out
        self.ops += 1
        packet = getattr(func, "_overloadpacket", None)
        if packet is aten._to_copy or packet is aten.copy_:
            self._count_upload(packet, args, out)
        elif packet is not None and (formula := _FORMULAS.get(packet) or flop_registry.get(packet)) is not None:
            with contextlib.suppress(Exception):  # a formula of torch that does not know these shapes
                self.flops_by_dtype[_type_of(args)] += formula(*args, **(kwargs or {}), out_val=out)
        elif packet is aten.embedding_dense_backward:
            indices, rows = args[1], int(args[2])
            self.table_rows += rows
            self.table_rows_used += min(rows, indices.numel())
        return out

    def _count_upload(self, packet: Any, args: tuple[Any, ...], out: Any) -> None:
        source = args[1] if packet is aten.copy_ else args[0]
        if not isinstance(source, torch.Tensor) or source.device.type != "cpu" or out.device.type == "cpu" or source.dim() == 0:
            return  # a scalar tensor is an argument of a kernel, not a batch
        self.h2d_copies += 1
        self.h2d_bytes += source.nbytes


def _type_of(args: Iterable[Any]) -> str:
    """The type in which a matmul is computed: that of its first floating-point tensor."""
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
    """Two matmuls per time step: with the input and with the state."""
    return float(2 * values.shape[0] * values.shape[1] * (of_input.numel() + of_state.numel()))


# Operations of CPUs that torch's FLOP registry leaves out.
_FORMULAS: dict[Any, Callable[..., float]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    aten.mkldnn_rnn_layer: _recurrent_flops,
    aten.mkldnn_rnn_layer_backward: lambda *args, **kwargs: 2 * _recurrent_flops(*args, **kwargs),
}


class Profiling:
    """Divides the time of steps by class of operation: on a CPU the whole step, on a GPU that of its kernels."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._steps = 0  # steps that `begin` announced
        self._ranges: list[Any] = []
        self._profile: Any = torch.autograd.profiler.profile(
            use_device="cuda" if device == "cuda" else None,
            use_kineto=True,  # otherwise nested operations count twice
        )
        self.shares: dict[str, float] = {}
        self.kernels: float | None = None
        self.device_seconds: float | None = None
        """How long the GPU was busy: the least that a step takes there, even if it waits for the host in between."""

    def begin(self) -> None:
        """A step begins: it has its batch. The first one starts the profile."""
        if self._steps == 0:
            with _real_profiler():
                self._profile.__enter__()
        self._steps += 1
        self._open(STEP_RANGE)

    def edge(self, phase: int) -> None:
        """A phase of the step begins."""
        if phase == FORWARD and len(self._ranges) == 1:
            self._open(FORWARD_RANGE)
        elif phase != FORWARD and len(self._ranges) == 2:
            self._close()

    def end(self) -> None:
        """The step has ended; what follows until the next one belongs to no step."""
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
        with _real_profiler():
            self._profile.__exit__(None, None, None)
        events = self._profile.function_events or []
        if self._device == "cuda":
            kernels, self.shares = kernel_shares(events)
            busy = busy_seconds(events)
            self.kernels = kernels / self._steps
            self.device_seconds = None if busy is None else busy / self._steps
        else:
            self.shares = step_shares(events)


_autograd: Any = torch.autograd
PROFILER_CALLS = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
"""What a profile calls to begin and to end, in `torch.autograd.profiler`."""


@contextmanager
def _real_profiler() -> Iterator[None]:
    """The calls as they are in torch, in this block."""
    with ExitStack() as undo:
        for name in PROFILER_CALLS:
            replace(undo, torch.autograd.profiler, name, getattr(_autograd, name))
        yield


class ProgramProfilers:
    """Profilers of the program, which record nothing from `hold` to `release`: they slow steps down, and torch runs one at a time.

    The program gets results all the same: what was recorded before, else none.
    """

    def __init__(self) -> None:
        self.used = self._holds = False
        self._open = False  # whether the program has begun a profile that it has not ended
        self._results: Any = _NoResults()  # of the profile that the program ends next
        self._undo = ExitStack()

    def hold(self) -> None:
        """Begin. A profile that is running ends now."""
        self._holds = True
        if _autograd._profiler_enabled():
            self.used = self._open = True
            self._results = _autograd._disable_profiler()
        for name, by in zip(PROFILER_CALLS, (lambda *arguments, **options: None, self._begin, self._end), strict=True):
            replace(self._undo, torch.autograd.profiler, name, by)

    def release(self) -> None:
        """Let profiles record again. One that the program has begun still gets its results here."""
        self._undo.close()
        self._holds = False
        if self._open:
            replace(self._undo, torch.autograd.profiler, PROFILER_CALLS[-1], self._end)

    def _begin(self, *arguments: Any, **options: Any) -> None:
        """The program begins a profile."""
        self.used = self._open = True

    def _end(self) -> Any:
        """The results of a profile that the program ends."""
        results, self._results, self._open = self._results, _NoResults(), False
        if not self._holds:
            self._undo.close()
        return results


class _NoResults:
    """What torch reads of a profile in which nothing was recorded."""

    def events(self) -> list[Any]:
        return []

    def experimental_event_tree(self) -> list[Any]:
        return []

    def trace_start_ns(self) -> int:
        return 0

    def save(self, path: str) -> None:
        write_file(Path(path), b'{"traceEvents": []}')


def step_shares(events: Iterable[Any]) -> dict[str, float]:
    """Shares of a step's time on a CPU by class of operation."""
    # `other_ops` are operations of class "other", `python` is what the forward pass does for long without any operation, and `other`
    # is all else that no operation took: torch's own Python, autograd, views. Each class has its median over the steps, so that a
    # step that was interrupted does not count.
    events = [event for event in events if event.device_type.name == "CPU"]
    if not events:
        return {}
    steps = sorted((event.time_range.start, event.time_range.end) for event in events if event.name == STEP_RANGE)
    if not steps:  # not marked: one step
        steps = [(min(event.time_range.start for event in events), max(event.time_range.end for event in events))]
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
            times[number]["other_ops" if kind == "other" else kind] += event.self_cpu_time_total
    for begin, pauses in _pauses(events):
        number = bisect_right(begins, begin) - 1
        if number >= 0:
            times[number]["python"] += pauses
    spans = [end - begin for begin, end in steps]
    if len(spans) > 2:  # the first has what starting costs
        times, spans = times[1:], spans[1:]
    medians = {kind: statistics.median(time.get(kind, 0.0) for time in times) for kind in {name for time in times for name in time}}
    whole = max(statistics.median(spans), sum(medians.values()))
    if whole <= 0:
        return {}
    return {kind: time / whole for kind, time in medians.items()} | {"other": 1 - sum(medians.values()) / whole}


def _pauses(events: Sequence[Any]) -> Iterator[tuple[float, float]]:
    """The start of each forward pass, and its time in long pauses between operations."""
    spans = [(event.time_range.start, event.time_range.end) for event in events if event.name.startswith(("aten::", "autograd::"))]
    works = sorted(spans)
    for forward in events:
        if forward.name == FORWARD_RANGE:
            begin, end = forward.time_range.start, forward.time_range.end
            last, pauses = begin, []
            for start, stop in works[bisect_left(works, (begin, begin)) :]:
                if start >= end:
                    break
                pauses.append(start - last)
                last = max(last, stop)
            pauses.append(end - last)
            # A long pause counts whole: an interpreter that computes does not dispatch meanwhile.
            yield begin, sum(pause for pause in pauses if pause > RULE.short_pause_us)


def kernel_shares(events: Iterable[Any]) -> tuple[float, dict[str, float]]:
    """The number of kernels, and shares of their time by the class of the operation that launched them."""
    times: dict[str, float] = defaultdict(float)
    count = 0
    for event in events:
        if event.is_user_annotation or event.name.startswith((OPTIMIZER_RANGE, CLOSURE_RANGE, *RUNTIME)) or not event.kernels:
            continue
        in_search = any(class_of(parent.name) == "search" for parent in _parents(event))  # such as the copies of a sort
        kind = "optimizer" if _in_optimizer(event) else "search" if in_search else class_of(event.name) or "other"
        for kernel in event.kernels:
            count += 1
            times[kind] += kernel.duration
    total = sum(times.values())
    return float(count), {kind: time / total for kind, time in times.items()} if total > 0 else {}


def busy_seconds(events: Iterable[Any]) -> float | None:
    """Length of the union of all device work except uploads; None if there was none."""
    spans = []
    for event in events:
        activity = getattr(event, "activity_type", None)  # older releases of torch do not have it
        annotates = event.is_user_annotation or event.name.startswith((OPTIMIZER_RANGE, CLOSURE_RANGE))
        is_work = activity in GPU_WORK if activity is not None else not annotates
        if event.device_type.name == "CUDA" and is_work and UPLOAD not in event.name:
            spans.append((event.time_range.start, event.time_range.end))
    busy, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy / 1e6 if spans else None


def _in_optimizer(event: Any) -> bool:
    """Whether it belongs to the optimizer; what a closure runs within the optimizer's step does not."""
    for parent in _parents(event):
        if parent.name == CLOSURE_RANGE:
            return False
        if parent.name.startswith(OPTIMIZER_RANGE):
            return True
    return False


def _parents(event: Any) -> Iterator[Any]:
    parent = event.cpu_parent
    while parent is not None:
        yield parent
        parent = parent.cpu_parent


def work_of(counted: Counting) -> Work:
    """What one step does, from the counts."""
    return Work(
        ops=float(counted.ops),
        flops=counted.flops,
        h2d_bytes=float(counted.h2d_bytes),
        h2d_copies=float(counted.h2d_copies),
        table_rows=float(counted.table_rows),
        table_rows_used=float(counted.table_rows_used),
    )


def with_times(work: Work, profiled: Profiling) -> Work:
    """The same with the times of a profile."""
    return msgspec.structs.replace(work, kernels=profiled.kernels, shares=profiled.shares, device_seconds=profiled.device_seconds)


def main_precision(counted: Counting) -> str:
    """The type of most of the floating-point work."""
    return max(counted.flops_by_dtype, key=lambda kind: counted.flops_by_dtype[kind]) if counted.flops else "fp32"
