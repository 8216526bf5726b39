"""The machine is measured once, without touching anything of the user's."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tests.diagnose.measured import MS
from tests.diagnose.measuring import measure_step
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

from stoker.diagnose import hardware
from stoker.diagnose.hardware import gpu_taken, matmul_flops, measure_machine


@pytest.fixture(autouse=True)
def unmeasured() -> None:
    """As in a new process."""
    measure_machine.cache_clear()


def test_rates_are_possible_and_known_from_then_on() -> None:
    measured = measure_machine()
    assert measured.gpu is None
    assert measured.cores >= 1
    assert measured.threads == torch.get_num_threads()
    assert 1e-8 < measured.dispatch_seconds < 1e-2
    assert measured.matmul_flops.keys() == {"fp32", "bf16"}
    assert min(measured.matmul_flops.values()) > 1e6
    assert measure_machine() is measured


def test_nothing_of_the_users_is_touched() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(64)
    steps: list[int] = []
    hooks = [
        register_optimizer_step_post_hook(lambda *_: steps.append(1)),
        torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: steps.append(1)),
    ]
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            measured = measure_machine()
            assert torch.is_autocast_enabled("cpu")
            assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 64
    finally:
        torch.set_num_threads(threads)
        for hook in hooks:
            hook.remove()
    assert measured.threads == 64
    assert not steps
    assert torch.equal(torch.get_rng_state(), state)


def test_peaks_under_the_users_modes() -> None:
    with torch.inference_mode():
        assert measure_machine.__wrapped__("cpu").dispatch_seconds > 0
    torch.set_default_dtype(torch.float64)
    try:
        assert hardware.dispatch_seconds() > 0
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("milliseconds", "share"), [([1.0], 0.0), ([1.0, 1.0, 1.0, 5.0], 0.5)])
def test_what_interrupts_known_kernels_are_other_programs(
    milliseconds: list[float], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = iter(milliseconds * hardware.KNOWN_KERNELS)

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            """Nothing runs."""

        def elapsed_time(self, later: Event) -> float:
            return next(spent)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch, "full", lambda *size, **options: torch.ones(2, 2))
    monkeypatch.setattr(torch, "empty_like", lambda value: torch.ones(2, 2))
    assert gpu_taken() == pytest.approx(share)


@pytest.mark.gpu
def test_rates_of_a_gpu() -> None:
    measured = measure_machine("cuda")
    assert measured.gpu
    assert measured.launch_seconds is not None
    assert 1e-7 < measured.launch_seconds < 1e-3
    assert measured.matmul_flops["bf16"] > measured.matmul_flops["fp32"]
    assert torch.get_float32_matmul_precision() == "highest"
    assert matmul_flops("tf32", "cuda") > 1e9
    assert 0 <= gpu_taken() < 1


# ---- pages: that they are counted where memory comes from the system, and that no prediction is sure of them ----

FRESH = """
import sys
import torch
from stoker.diagnose.hardware import keep_memory, pages_so_far
for way in ("as it is", "keep"):
    if way == "keep" and not keep_memory():
        sys.exit("no such setting")
    for number in range(6):
        if number == 3:
            before = pages_so_far()
        blocks = [torch.ones(size << 20) for size in (1, 3, 9)]
        del blocks
    print(pages_so_far() - before)
"""
"""Pages of three rounds in which 52 MiB are taken and given back, before and after the setting."""


def test_memory_that_is_kept_is_not_asked_for_again() -> None:
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=False)
    if "no such setting" in done.stderr:
        pytest.skip("the allocator of this machine has no such setting")
    as_it_is, kept = map(int, done.stdout.split())
    assert kept < 100
    assert as_it_is > 1_000  # the control: without it, all pages are requested again


def test_pages_of_steps_are_counted() -> None:
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

    def train_step(batch: list[torch.Tensor]) -> None:
        optimizer.zero_grad()
        net(batch[0]).sum().backward()
        optimizer.step()

    measured = measure_step(train_step, DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4), pace=0.1)
    assert set(measured.pages) == {"loop", "cached"}
    assert all(0 <= number < 1_000 for some in measured.pages.values() for number in some)
    assert measured.loop.median < 100 * MS
