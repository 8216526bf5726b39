"""A step divided by experiments: what the removal of a suspect saved is its part. Whole programs are in test_rule_kept.py."""

from __future__ import annotations

import msgspec
import pytest
from tests.diagnose.measured import COMPUTING, LOG, MS, NO_PHASES, TWO_CORES, around, changed, on_cpu, on_gpu

from stoker.diagnose.division import divide
from stoker.diagnose.measurements import BusyThread, Loader
from stoker.diagnose.rule import conclude, rank
from stoker.diagnose.wording import why_first


def test_all_together_save_what_they_save_together() -> None:
    """Each of two suspects hides the other: without both, 1 ms of 10 is left."""
    division = divide(on_gpu(10.0, cached=4.0, copies=7.0, everything=1.0, device=0.9))
    assert division.share("data") == pytest.approx(0.6)
    assert division.share("transfer") == pytest.approx(0.3)
    noisy = divide(on_gpu(10.0, cached=4.0, copies=4.0, everything=7.0, device=1.0))
    assert noisy.share("data", "transfer") == pytest.approx(0.6), "all of them save no less than one of them"


def test_without_a_removal_only_the_wait_for_batches_is_known() -> None:
    waits = msgspec.structs.replace(NO_PHASES, next=6 * MS, forward=4 * MS)
    unknown = on_gpu(10.0, device=3.0, removed={}, phases=waits)
    assert divide(unknown).share("data") == 0
    assert divide(msgspec.structs.replace(unknown, cached=None)).share("data") == pytest.approx(0.6)


def test_python_after_the_update_is_the_loops_and_what_is_far_slower_than_launches_is_python() -> None:
    assert divide(on_gpu(10.0, device=2.0, rest=5.0)).share("host") == pytest.approx(0.5)
    few = on_gpu(10.0, device=2.0, kernels=10)  # 20 operations cannot take 8 ms to issue
    assert divide(few).share("host") == pytest.approx(0.8 - 10 * 20 * 4e-6 / 0.010)
    thread = BusyThread(name="statistics", share=0.9, place=LOG)
    held = on_gpu(10.0, device=2.0, kernels=2000, busy_thread=thread, asleep=0.7)
    assert rank(held)[0].verdict == "host"
    assert rank(msgspec.structs.replace(held, busy_thread=None))[0].verdict == "launch", "negative control"


def test_a_step_that_waits_for_the_gpu_spoils_the_time_of_the_device_alone() -> None:
    """A loss that is read in each step: issuing it while the device sleeps takes until the sleep is over."""
    measured = on_gpu(10.0, reads=6.0, device=5.8, device_alone=around(25 * MS), kernels=100, reached=0.5, precision="bf16")
    assert divide(measured).share("sync") == pytest.approx(0.4)
    assert divide(measured).share("compute", "memory") == pytest.approx(0.58)


def test_what_the_code_after_the_update_takes_is_what_steps_gain_without_it() -> None:
    """A metric of 8 ms in a step of 10: its phase was measured with 6, and the steps without it say 8."""
    measured = on_cpu(forward=1.0, backward=1.0, optimizer=0.2, rest=6.0, loop=around(10 * MS), cached=around(10 * MS))
    skipped = msgspec.structs.replace(measured, removed={"between": changed(10.0, 2.0)})
    assert divide(skipped).share("host") == pytest.approx(0.8, abs=0.02)
    assert conclude(skipped).causes[0].sentence == "without code after the update, a step takes 2 ms instead of 10 ms (5.00x)"
    assert divide(measured).share("host") < 0.78, "negative control: by the phase alone"


def test_on_a_gpu_it_is_what_steps_gain_without_the_code_after_the_update_too() -> None:
    """Its kernels are launched by the phases around it, so its own phase is shorter than what it costs."""
    measured = on_gpu(10.0, device=1.0, rest=3.0)
    skipped = msgspec.structs.replace(measured, removed={**measured.removed, "between": changed(10.0, 4.0)})
    assert divide(skipped).share("host") == pytest.approx(0.6)
    assert (rank(skipped)[0].verdict, rank(measured)[0].verdict) == ("host", "launch"), "the second is the negative control"


@pytest.mark.parametrize(("left", "verdict"), [(6.5, "host"), (7.8, "launch")])
def test_a_removal_comes_before_launches_that_are_not_far_more(left: float, verdict: str) -> None:
    """The GPU idles for half of the step, whatever is removed: nobody knows how much of that can be had."""
    measured = on_gpu(10.0, everything=left, device=left - 4.5)
    hooks = msgspec.structs.replace(measured, removed={**measured.removed, "callbacks": changed(10.0, left)})
    causes = rank(hooks)
    assert causes[0].verdict == verdict
    assert ("idle time" in why_first(causes)) == (verdict == "host")
    captured = msgspec.structs.replace(hooks, what_ifs={"graph": changed(10.0, 5.5)})
    assert rank(captured)[0].verdict == "launch", "without launches, steps were measured, too"


def test_what_is_uploaded_while_a_batch_is_made_is_a_transfer() -> None:
    """A generator that gathers for 4 ms and uploads for 5: without it, both are gone."""
    times = {"cached": 1.0, "copies": 5.0, "everything": 1.0, "device": 0.9}
    gathers = on_gpu(10.0, **times, loader=Loader(kind="generator", on_gpu=True))
    assert divide(gathers).share("data") == pytest.approx(0.4)
    assert divide(gathers).share("transfer") == pytest.approx(0.5)
    assert rank(gathers)[0].verdict == "transfer"
    later = on_gpu(10.0, **times, loader=Loader(kind="generator"))
    assert divide(later).share("data") == pytest.approx(0.9), "negative control: each may hide behind the other"


@pytest.mark.parametrize(("precision", "fix"), [("fp32", "tf32"), ("fp32", "autocast"), ("fp64", "float32")])
def test_a_shorter_type_that_was_measured_is_the_part_of_the_precision(precision: str, fix: str) -> None:
    """Kernels alone say that the precision costs 78 %; steps save 15 % of it, or nothing."""
    estimated = on_gpu(10.0, device=8.5, shares=COMPUTING, precision=precision)
    measured = msgspec.structs.replace(estimated, what_ifs={fix: changed(10.0, 8.4)})
    assert divide(measured).share("precision") == pytest.approx(0.16)
    assert divide(measured).share("compute") > 0.5 > 0.1 > divide(estimated).share("compute")
    assert (rank(measured)[0].verdict, rank(estimated)[0].verdict) == ("precision", "launch")
    slower = msgspec.structs.replace(estimated, what_ifs={fix: changed(10.0, 10.5)})
    says_nothing = precision == "fp64"  # converting batches took longer
    assert divide(slower).share("precision") == (divide(estimated).share("precision") if says_nothing else 0)
    assert rank(slower)[0].verdict == "launch"


def test_an_optimizer_comes_before_a_waste_if_more_of_it_can_be_saved() -> None:
    """Batches take 3 ms of 10, the optimizer 4; how much of it its fused implementation saves was measured."""
    both = on_cpu(next=3.0, forward=1.0, backward=1.7, optimizer=4.0)
    saves = {share: msgspec.structs.replace(both, what_ifs={"fused": changed(10.0, 10.0 * (1 - share))}) for share in (0.1, 0.5)}
    assert [rank(measured)[0].verdict for measured in saves.values()] == ["data", "optimizer"]
    assert rank(both)[0].verdict == "optimizer", "its whole part counts where nothing was measured"
    assert both.work is not None
    table = msgspec.structs.replace(both.work, table_rows=1e5, table_rows_used=100.0)
    assert rank(msgspec.structs.replace(saves[0.1], work=table))[0].verdict == "optimizer", "sparse gradients save more"


@pytest.mark.parametrize(
    ("threads", "fewer", "verdict"), [(2, 0.8, "compute"), (2, 0.4, "oversubscribed"), (4, 0.8, "oversubscribed")]
)
def test_threads_with_a_core_each_are_a_waste_if_fewer_are_far_faster(threads: int, fewer: float, verdict: str) -> None:
    """Two hyperthreads of a core are hardly faster than one, and a container may have fewer cores than it sees."""
    machine = msgspec.structs.replace(TWO_CORES, threads=threads)
    measured = on_cpu(machine=machine, fewer_threads={str(threads): 10 * MS, "1": 10 * MS * fewer})
    assert rank(measured)[0].verdict == verdict


def test_memory_that_goes_back_to_the_system_is_not_python() -> None:
    """30,000 pages per step: to free them takes 1.6 of 11 ms, in which no operation runs."""
    machine = msgspec.structs.replace(TWO_CORES, page_seconds=2.6e-6)
    shares = {"elementwise": 0.7, "copy": 0.1, "python": 0.15, "other": 0.05}
    frees = on_cpu(machine=machine, shares=shares, pages={"loop": [3100.0] * 4})
    assert divide(frees).share("host") < 0.02
    assert divide(msgspec.structs.replace(frees, pages={})).share("host") > 0.14, "negative control"
