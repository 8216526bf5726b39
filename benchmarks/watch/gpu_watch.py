"""Does the watch name slowdowns on a GPU: a slower loader, a step that computes more, another program on it? And none in a soak?

Run on a machine with a GPU: `python -m benchmarks.watch.gpu_watch`.
It changes no setting of the GPU, so a lower clock is not among the cases.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import stoker
from benchmarks.record import arguments, save
from stoker.watch.counters import read_counters

QUESTION = "Does the watch name slowdowns on a GPU, and none in a soak?"
AT = 2000
STEPS = 2400
NEIGHBOUR = (
    "import torch; x = torch.ones(8192, 8192, device='cuda')\nprint('on', flush=True)\nwhile True: x @ x; torch.cuda.synchronize()"
)


class Loop:
    """A training loop whose step reads its loss, as most do."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6))).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.batch = torch.randn(2048, 2048, device="cuda")
        self.repeats = 1
        self.wait_seconds = 0.0

    def batches(self, steps: int, at: int, change: Callable[[], None]) -> Any:
        for step in range(steps):
            if step == at:
                change()
            if self.wait_seconds:
                time.sleep(self.wait_seconds)
            yield self.batch

    def run(self, steps: int, at: int, change: Callable[[], None]) -> dict[str, Any]:
        watched = stoker.watch(self.batches(steps, at, change))
        begin = time.perf_counter()
        for batch in watched:
            for _ in range(self.repeats):
                loss = self.model(batch).square().mean()
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            loss.item()
        return {
            "steps": steps,
            "slowdown made at step": at if at >= 0 else None,
            "found": [{**slowdown.as_dict(), "line": str(slowdown)} for slowdown in watched.slowdowns],
            "milliseconds per step": 1e3 * (time.perf_counter() - begin) / steps,
            "smallest slowdown that would be found within 100 steps": watched.smallest_slowdown,
        }


def main() -> None:
    options = arguments(QUESTION)
    soak = 3000 if options.small else 20_000
    loop, begun = Loop(), []

    def neighbour() -> None:
        begun.append(subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdout=subprocess.PIPE))
        begun[-1].stdout.readline()

    answer: dict[str, Any] = {"gpu": torch.cuda.get_device_name()}
    print(read_counters(), file=sys.stderr, flush=True)
    begin = time.perf_counter()
    for _ in range(100):
        read_counters()
    answer["microseconds per read of the counters"] = (time.perf_counter() - begin) * 1e4

    def measured(name: str, steps: int, at: int, change: Callable[[], None]) -> None:
        answer[name] = loop.run(steps, at, change)
        save("gpu_watch", QUESTION, answer, show=False)  # as far as it is
        print(name, answer[name]["found"], file=sys.stderr, flush=True)

    measured("soak without a slowdown", soak, -1, lambda: None)
    measured("a slower loader", STEPS, AT, lambda: setattr(loop, "wait_seconds", 0.001))
    loop.wait_seconds = 0.0
    measured("a step that computes twice", STEPS, AT, lambda: setattr(loop, "repeats", 2))
    loop.repeats = 1
    measured("another program on the GPU", STEPS, AT, neighbour)
    for one in begun:
        one.kill()
        one.wait()


if __name__ == "__main__":
    main()
