"""What a step does: counts equal those of torch's own tools, and classes add up; kernels of a GPU are made up here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.diagnose.measured import on_cpu
from tests.harness import Zygote
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from stoker.diagnose.hooks import CLOSURE_RANGE, StepHooks
from stoker.diagnose.ops import (
    FORWARD_RANGE,
    STEP_RANGE,
    Counting,
    Profiling,
    ProgramProfilers,
    busy_seconds,
    class_of,
    kernel_shares,
    main_precision,
    step_shares,
    with_times,
    work_of,
)
from stoker.diagnose.rule import conclude
from stoker.diagnose.thresholds import RULE

# Every operation that the programs of verdicts dispatch on a CPU, and their like on a GPU, with its class. What is "none"
# does no work itself: it looks at memory another way, allocates, or calls another operation.
EXPECTED = {
    "gemm": (
        "_cdist_forward _convolution _cudnn_rnn _cudnn_rnn_backward _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_mm addmm baddbmm bmm convolution convolution_backward "
        "cudnn_convolution dot mkldnn_convolution mkldnn_rnn_layer mkldnn_rnn_layer_backward mm mv"
    ),
    "reduce": (
        "_fft_r2c _foreach_norm _log_softmax _log_softmax_backward_data _safe_softmax _softmax _softmax_backward_data all amax "
        "amin any argmax argmin avg_pool2d binary_cross_entropy_with_logits count_nonzero cudnn_batch_norm "
        "cudnn_batch_norm_backward cumsum huber_loss linalg_vector_norm logsumexp max max_pool2d_with_indices "
        "max_pool2d_with_indices_backward mean min mse_loss native_batch_norm native_batch_norm_backward native_group_norm "
        "native_layer_norm native_layer_norm_backward nll_loss_backward nll_loss_forward norm prod std std_mean sum var "
        "var_mean"
    ),
    "search": ("_unique2 bincount kthvalue median nonzero searchsorted sort topk"),
    "copy": (
        "_embedding_bag _embedding_bag_backward _embedding_bag_dense_backward _index_put_impl_ _to_copy arange cat clone "
        "constant_pad_nd copy_ diag_embed embedding embedding_dense_backward eye fill_ flip gather index index_add_ index_put_ "
        "index_select masked_fill masked_fill_ pixel_shuffle pixel_unshuffle repeat roll scatter_add_ select_backward "
        "slice_backward stack tril triu zero_"
    ),
    "elementwise": (
        "_foreach_add_ _foreach_addcdiv_ _foreach_addcmul_ _foreach_div_ _foreach_lerp_ _foreach_mul_ _foreach_sqrt "
        "_fused_adam_ _fused_adamw_ _fused_sgd_ abs add add_ addcdiv_ addcmul addcmul_ bernoulli_ bitwise_not bitwise_or clamp "
        "clamp_min clamp_min_ cos div div_ elu_backward eq exp exp_ ge gelu gelu_backward gt huber_loss_backward isinf isnan "
        "isneginf le leaky_relu leaky_relu_backward lerp_ log log_ log_sigmoid_backward log_sigmoid_forward logical_and "
        "logical_and_ lt maximum minimum mse_loss_backward mul mul_ native_dropout native_dropout_backward ne neg normal_ pow "
        "random_ reciprocal relu relu_ remainder rsqrt rsub sgn sigmoid sigmoid_ sigmoid_backward sign silu silu_backward sin "
        "sqrt sqrt_ sub sub_ tanh tanh_ tanh_backward threshold_backward uniform_ where xlogy"
    ),
    "other": (
        "_ctc_loss _linalg_eigh _linalg_solve_ex _linalg_svd linalg_cholesky_ex linalg_inv_ex linalg_lu_factor_ex linalg_qr "
        "linalg_solve_triangular multinomial"
    ),
    "none": (
        "_batch_norm_impl_index _local_scalar_dense _reshape_alias _scaled_dot_product_attention_math _unsafe_view "
        "adaptive_avg_pool2d as_strided as_strided_ batch_norm broadcast_tensors chunk contiguous conv1d conv2d conv3d "
        "cross_entropy_loss cudnn_is_acceptable detach detach_ diag diagonal dropout einsum embedding_backward embedding_bag "
        "empty empty_like empty_strided expand expand_as flatten full gru is_nonzero item kl_div l1_loss layer_norm lift_fresh "
        "linalg_cholesky linalg_eigvalsh linalg_inv linalg_solve linear log_sigmoid log_softmax lstm lstm_cell "
        "margin_ranking_loss matmul max_pool2d narrow new_empty new_empty_strided new_zeros nll_loss nll_loss_nd ones ones_like "
        "outer pad permute rand randint randn real reshape resize_ resolve_conj resolve_neg result_type scalar_tensor "
        "scaled_dot_product_attention select set_ slice softmax split square squeeze squeeze_ t to transpose transpose_ unbind "
        "unflatten unsafe_chunk unsafe_split unsqueeze unsqueeze_ view zeros zeros_like"
    ),
}


class Training:
    """A small one."""

    def __init__(self, *, kind: type[torch.optim.Optimizer] = torch.optim.AdamW, **options: Any) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
        self.optimizer: Any = kind(self.model.parameters(), lr=1e-3, **options)  # type: ignore[call-arg]

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(8, 16)).square().mean().backward()
        self.optimizer.step()


def test_floating_point_work_is_that_of_torchs_own_counter() -> None:
    training = Training()
    with FlopCounterMode(display=False) as theirs:
        training.step()
    with Counting() as ours:
        training.step()
    assert ours.flops == theirs.get_total_flops() > 0
    assert dict(ours.flops_by_dtype) == {"fp32": ours.flops}
    assert main_precision(ours) == "fp32"


def test_counts_are_the_same_in_each_step() -> None:
    training, counts = Training(), []
    for _ in range(4):
        with Counting() as counted:
            training.step()
        counts.append((counted.ops, counted.flops))
    assert len(set(counts[1:])) == 1


def test_types_are_those_of_the_products() -> None:
    with Counting() as counted, torch.autocast("cpu", dtype=torch.bfloat16):
        functional.linear(torch.ones(4, 8), torch.ones(8, 8))
    assert dict(counted.flops_by_dtype) == {"bf16": 2 * 4 * 8 * 8}
    with Counting() as counted:
        torch.ones(4, 8, dtype=torch.float64) @ torch.ones(8, 8, dtype=torch.float64)
    assert main_precision(counted) == "fp64"


def test_attention_and_recurrent_layers_of_a_cpu_are_counted() -> None:
    query = torch.ones(1, 2, 8, 4, requires_grad=True)
    with Counting() as counted:
        functional.scaled_dot_product_attention(query, query, query).sum().backward()
    assert counted.flops == (2 + 5) * 2 * 2 * 8 * 8 * 4  # two products forward, five backward
    layer = torch.nn.LSTM(4, 6)
    with Counting() as counted:
        layer(torch.ones(5, 2, 4))[0].sum().backward()
    assert counted.flops == 3 * 2 * 5 * 2 * 4 * 6 * (4 + 6)


def test_uploads_are_counted() -> None:
    with Counting() as counted:
        torch.ones(10).to("meta")
        torch.empty(10, dtype=torch.float64, device="meta").copy_(torch.ones(10, dtype=torch.float64))
        torch.ones(10).clone()
        torch.tensor(1.0).to("meta")  # a number is no batch
    assert (counted.h2d_copies, counted.h2d_bytes) == (2, 120)


@pytest.mark.parametrize("kind", EXPECTED)
def test_operations_of_programs_have_the_expected_class(kind: str) -> None:
    known = [name for name in EXPECTED[kind].split() if hasattr(torch.ops.aten, name)]
    assert len(known) > 0
    found = {name: class_of(f"aten::{name}") for name in known}
    assert found == dict.fromkeys(known, None if kind == "none" else kind)


def test_names_that_are_not_operations_have_no_class() -> None:
    for name in (
        "Optimizer.step#AdamW.step",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "torch::autograd::AccumulateGrad",
        "profiler::_record_function_enter_new",
        "aten::there_is_no_such_operation",
        "stoker.step",
    ):
        assert class_of(name) is None, name


def test_a_custom_operation_is_other_unless_it_has_a_tag(request: pytest.FixtureRequest) -> None:
    library = torch.library.Library("stoker_test_ops", "DEF")
    request.addfinalizer(library._destroy)
    library.define("unknown(Tensor x) -> Tensor")
    library.define("tagged(Tensor x) -> Tensor", tags=torch.Tag.pointwise)
    for name in ("unknown", "tagged"):
        library.impl(name, lambda x: x + 1, "CPU")
    assert class_of("stoker_test_ops::unknown") == "other"
    assert class_of("stoker_test_ops::tagged") == "elementwise"


def test_factorizations_are_not_called_memory_bound() -> None:
    """`eigvalsh` and `cholesky` once counted as element-wise, because they were in no list."""
    values = torch.randn(256, 256, dtype=torch.float64)
    matrix = values @ values.T + 256 * torch.eye(256, dtype=torch.float64)
    profiled = Profiling()
    for _ in range(5):
        profiled.begin()
        torch.linalg.eigvalsh(matrix)
        torch.linalg.cholesky(matrix)
        profiled.end()
    profiled.close()
    # How much of the time they took depends on what else the machine does; that none of it is element-wise does not.
    assert profiled.shares["other_ops"] > 0
    assert profiled.shares.get("elementwise", 0.0) == 0
    finding = conclude(on_cpu(shares={"other_ops": 0.9, "other": 0.1}, flops=0.0))
    assert finding.verdict == "kernel"
    assert all(cause.share < 0.3 for cause in finding.causes if cause.verdict == "memory")
    assert conclude(on_cpu(shares={"elementwise": 0.9, "other": 0.1}, flops=0.0)).verdict == "memory"  # negative control


@pytest.mark.parametrize("steps", [1, 5])
def test_shares_of_a_step_add_up(steps: int) -> None:
    training = Training()
    training.step()
    profiled = Profiling()
    for _ in range(steps):
        profiled.begin()
        training.step()
        profiled.end()
        torch.ones(1000).sort()  # the loader's, between steps
    profiled.close()
    assert sum(profiled.shares.values()) == pytest.approx(1.0)
    assert {"gemm", "elementwise", "optimizer", "other"} <= profiled.shares.keys()
    assert min(profiled.shares.values()) >= 0
    with Counting() as counted:
        training.step()
    work = with_times(work_of(counted), profiled)
    assert (work.ops, work.shares, work.kernels) == (counted.ops, profiled.shares, None)


def event(
    name: str, start: float, end: float, *, device: str = "CPU", parent: Any = None, own: float | None = None, **more: Any
) -> Any:
    kernels = [SimpleNamespace(duration=duration) for duration in more.pop("kernels", [])]
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start, end=end),
        device_type=SimpleNamespace(name=device),
        cpu_parent=parent,
        cpu_time_total=end - start,
        self_cpu_time_total=end - start if own is None else own,
        is_user_annotation=name.startswith("Optimizer"),
        kernels=kernels,
        **more,
    )


def test_a_step_that_was_interrupted_names_no_one() -> None:
    events, ranges = [], []
    for number in range(5):
        begin = 200.0 * number
        slow = 60.0 if number == 3 else 0.0  # another process had the core
        events.append(event("aten::addmm", begin, begin + 30))
        events.append(event("aten::relu", begin + 30, begin + 35 + slow, own=5 + slow))
        events.append(event("Optimizer.step#SGD.step", begin + 96, begin + 100))
        events.append(event("aten::sort", begin + 100, begin + 170))  # between two steps
        ranges.append(event(STEP_RANGE, begin, begin + 100))
    shares = step_shares([*events, *ranges])
    assert shares == pytest.approx({"gemm": 0.30, "elementwise": 0.05, "optimizer": 0.04, "other": 0.61})
    assert step_shares(events)["elementwise"] != pytest.approx(0.05)  # without its steps told apart


def test_what_a_closure_runs_within_the_optimizer_is_not_the_optimizers() -> None:
    step = event("Optimizer.step#SGD.step", 0, 90)
    closure = event(CLOSURE_RANGE, 10, 70, parent=step)
    product = event("aten::mm", 20, 60, parent=closure, kernels=[40.0])
    update = event("aten::_foreach_add_", 75, 85, parent=step, kernels=[10.0])
    rest = event("aten::mul", 90, 100, kernels=[10.0])
    shares = {"optimizer": 0.3, "gemm": 0.4, "elementwise": 0.1, "other": 0.2}
    assert step_shares([step, closure, product, update, rest]) == pytest.approx(shares)
    assert kernel_shares([step, closure, product, update, rest])[1] == pytest.approx(
        {"gemm": 4 / 6, "optimizer": 1 / 6, "elementwise": 1 / 6}
    )
    product.cpu_parent = step  # without the range around the closure
    assert "gemm" not in step_shares([step, product, update, rest])
    assert "gemm" not in kernel_shares([step, product, update, rest])[1]


def test_a_long_pause_between_operations_counts_whole_and_a_short_one_not_at_all() -> None:
    def python(*pauses: float) -> float:
        begin, events = 0.0, []
        for pause in pauses:
            events.append(event("aten::mm", begin, begin + 10))
            begin += 10 + pause
        whole = [event(name, 0, 1000) for name in (STEP_RANGE, FORWARD_RANGE)]
        return step_shares([*events, event("aten::mm", begin, 1000), *whole])["python"]

    assert python(300, 20, 200) == pytest.approx(0.5)
    assert python(RULE.short_pause_us, 90, 80, 70) == 0.0  # modules of torch
    assert python(RULE.short_pause_us + 1) == pytest.approx((RULE.short_pause_us + 1) / 1000)


def test_annotations_of_a_gpu_are_not_kernels() -> None:
    """A range around the optimizer has the time of its kernels too; taken along, they would count twice."""
    step = event("Optimizer.step#AdamW.step", 0, 50, kernels=[50.0])
    update = event("aten::_fused_adamw_", 10, 40, parent=step, kernels=[30.0])
    product = event("aten::mm", 60, 70, kernels=[60.0, 10.0])
    on_device = [
        event("Optimizer.step#AdamW.step", 100, 150, device="CUDA", activity_type="gpu_user_annotation"),
        event("adamw_kernel", 110, 140, device="CUDA", activity_type="kernel"),
        event("gemm", 130, 200, device="CUDA", activity_type="kernel"),
        event("Memcpy DtoD", 300, 310, device="CUDA", activity_type="gpu_memcpy"),
        event("Memcpy HtoD (Pageable -> Device)", 400, 450, device="CUDA", activity_type="gpu_memcpy"),
    ]
    launch = event("cudaLaunchKernel", 62, 63, kernels=[60.0])  # its number is that of another operation
    count, shares = kernel_shares([step, update, product, launch, *on_device])
    assert (count, shares) == (3.0, {"optimizer": 0.3, "gemm": 0.7})
    assert busy_seconds(on_device) == pytest.approx(100e-6)
    assert busy_seconds([step, update]) is None


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_of_embeddings_with_a_dense_gradient_are_counted(sparse: bool) -> None:
    table = torch.nn.Embedding(1_000, 4, sparse=sparse)
    counting = Counting()
    with counting:
        table(torch.arange(6)).sum().backward()
    assert (counting.table_rows, counting.table_rows_used) == ((0, 0) if sparse else (1_000, 6))


def times_called(profile: torch.profiler.profile, name: str) -> int:
    return sum(event.count for event in profile.key_averages() if event.key == name)


@pytest.fixture
def held() -> Iterator[ProgramProfilers]:
    held = ProgramProfilers()
    yield held
    held.release()


@pytest.mark.promise("P17", control=True)
def test_negative_control_two_profiles_at_once_lose_what_the_program_recorded() -> None:
    x = torch.ones(4, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        x.relu()
        ours = Profiling()
        ours.begin()
        x.relu()
        ours.end()
        ours.close()
    assert times_called(theirs, "aten::relu") == 0


@pytest.mark.promise("P17")
@pytest.mark.filterwarnings("ignore:.*clears events at the end of each cycle")
def test_cycles_of_a_profiler_neither_record_nor_end_a_profile_of_ours(held: ProgramProfilers, tmp_path: Path) -> None:
    x, saved = torch.ones(4, 4), list[int]()

    def save(profile: torch.profiler.profile) -> None:
        path = tmp_path / f"{len(saved)}.json"
        profile.export_chrome_trace(str(path))
        assert bool(json.loads(path.read_text())["traceEvents"]) == (len(saved) < 2)
        profile.key_averages().table()
        saved.append(times_called(profile, "aten::relu"))

    cycle = torch.profiler.schedule(wait=0, warmup=1, active=1)
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], schedule=cycle, on_trace_ready=save, with_stack=True) as theirs:
        for step in range(16):
            if step == 4:
                held.hold()
            if step == 8:
                ours = Profiling()
                ours.begin()
            x.relu()
            theirs.step()
            if step == 11:
                ours.end()
                ours.close()
    assert saved == [1, 1] + [0] * 6
    assert ours.shares["elementwise"] > 0


def profile_with_stacks(remember: bool) -> None:
    """The first profile of a process remembers the code of a module's call."""
    hooks, net = StepHooks(), torch.nn.Linear(2, 1)
    hooks.install()
    hooks.find_roots()
    if not remember:  # as it was: a variable `self` that is not the module
        self, original = hooks, torch.nn.Module.__call__
        torch.nn.Module.__call__ = lambda module, *args: (self, original(module, *args))[1]  # type: ignore[method-assign]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True):
        net(torch.ones(1, 2))
    assert hooks.roots == [net]


def test_a_profile_with_stacks_reads_the_module_of_a_call_from_its_variable_self(torch_zygote: Zygote) -> None:
    torch_zygote.run(profile_with_stacks, remember=True).check()
    # Negative control: another object under that name is taken for the module.
    with pytest.raises(Exception, match="has no attribute '_parameters'"):
        torch_zygote.run(profile_with_stacks, remember=False).check()
