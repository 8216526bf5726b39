"""What people do without a tool: profile thirty steps with `torch.profiler` and name what takes most of the time.

The rule is that of the usual guides: waiting for the `DataLoader`, the optimizer's step, copies, synchronization, matmuls and
element-wise operations by their times in the profile; on a CPU, time in no operation is Python of the loop, and operations of less
than ten microseconds are too small; a GPU that is idle for half of the time waits for launches.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verdicts.measure import Enough

WARM_UP, STEPS, FEWEST, LONGEST = 10, 30, 10, 4.0
SHORT_OP_US, IDLE_GPU = 10.0, 0.5
MATMULS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "rnn", "lstm", "gru", "attention", "einsum", "dot", "mv")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense")


class Window:
    """A profile of some steps in the middle of a run."""

    def __init__(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        self.seen, self.start, self.seconds = 0, 0.0, 0.0
        self.by_optimizer = False
        self.cuda = torch.cuda.is_available()
        self._backward = torch.Tensor.backward
        self.profile = profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.cuda else [])])

    def optimizer_step(self, *_: Any) -> None:
        """After each step of an optimizer."""
        self.by_optimizer = True
        self.step()

    def backward(self, tensor: Any, *args: Any, **options: Any) -> None:
        """In place of a tensor's: where weights are updated by hand, a step is a backward pass."""
        self._backward(tensor, *args, **options)
        if not self.by_optimizer:
            self.step()

    def step(self) -> None:
        """After each step."""
        self.seen += 1
        now = time.perf_counter()
        if self.seen == WARM_UP:
            self.profile.start()
            self.start = time.perf_counter()
        elif self.seen >= WARM_UP + STEPS or (self.seen >= WARM_UP + FEWEST and now - self.start > LONGEST):
            self.seconds = now - self.start
            self.profile.stop()
            raise Enough(0)


def shares(window: Window) -> dict[str, float]:
    """Shares of the time of the profiled steps by what they are spent on; they may overlap on a GPU."""
    wall = window.seconds * 1e6
    events = window.profile.key_averages()
    ops = [event for event in events if event.key.startswith(("aten::", "torch::", "autograd::")) and event.self_cpu_time_total > 0]
    found = {
        "data": sum(event.cpu_time_total for event in events if event.key.startswith("enumerate(DataLoader)")),
        "optimizer": sum(event.cpu_time_total for event in events if event.key.startswith("Optimizer.step#")),
    }
    busy = sum(one.self_cpu_time_total for one in ops)
    if window.cuda:
        kernels = sum(event.self_device_time_total for event in events if not event.key.startswith("Memcpy"))
        found["transfer"] = sum(event.self_device_time_total for event in events if event.key.startswith("Memcpy HtoD"))
        found["sync"] = sum(event.self_cpu_time_total for event in events if event.key in WAITS)
        if kernels < IDLE_GPU * wall:
            found["launch"] = min(busy, wall - kernels)
            found["host"] = max(0.0, wall - busy - sum(found[name] for name in ("data", "sync")))
            return {name: time_of / wall for name, time_of in found.items()}
    else:
        found["host"] = max(0.0, wall - busy - found["data"])
        kernels = max(0.0, busy - found["optimizer"])
        if ops and busy / sum(one.count for one in ops) < SHORT_OP_US:
            return {name: time_of / wall for name, time_of in (found | {"dispatch": kernels}).items()}
    by = [
        (event.key, event.self_device_time_total if window.cuda else event.self_cpu_time_total)
        for event in (events if window.cuda else ops)
    ]
    total = sum(time_of for _, time_of in by) or 1.0
    matmuls = sum(time_of for key, time_of in by if any(part in key.lower() for part in (*MATMULS, "gemm", "conv"))) / total
    found |= {"compute": matmuls * kernels, "memory": (1 - matmuls) * kernels}
    return {name: time_of / wall for name, time_of in found.items()}


def main(seconds: float, fewest: int, script: str, arguments: Sequence[str], processes: int = 1) -> None:
    """Print what the profile of a program says, the largest share first; it has its own number of steps."""
    del seconds, fewest, processes
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    window = Window()
    register_optimizer_step_post_hook(window.optimizer_step)
    torch.Tensor.backward = lambda tensor, *args, **options: window.backward(tensor, *args, **options)  # type: ignore[method-assign]
    with contextlib.suppress(Enough):
        runpy.run_path(script, run_name="__main__")
    answer: dict[str, Any] = {"said": [], "why": f"{window.seen} steps were seen"}
    if window.seconds:
        found = shares(window)
        ordered = sorted(found, key=lambda name: -found[name])
        answer = {"said": ordered, "why": ", ".join(f"{name} {found[name]:.0%}" for name in ordered[:3])}
    print("", json.dumps(answer), sep="\n", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
