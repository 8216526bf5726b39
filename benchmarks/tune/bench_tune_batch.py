"""Is the batch size that `stoker.tune.batch_size` chooses within 5 % of the best throughput of an exhaustive sweep?

Six small models. The sweep measures every power of two and the sizes between them, up to the largest; the three fastest are measured
again in turn, and the fastest of them is the best. The share of the best is that of the chosen size and the best size, measured once
more in turn. Runs on a GPU where there is one; there a search also runs into the end of a small part of the memory.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import record
from stoker.tune import batch_size
from stoker.tune.batch_sizes import _Measure

QUESTION = "Is the chosen batch size within 5 % of the best samples per second of an exhaustive sweep?"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LARGEST = 1 << 16 if DEVICE.type == "cuda" else 512
SMALLEST = 64 if DEVICE.type == "cuda" else 2
"""Of the sweep. A GPU takes as long for less."""
LITTLE_MEMORY = 400 << 20
"""For the search that runs out of memory."""


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(8, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.gru(x)[0][:, -1])


def attention(width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
    return nn.Sequential(nn.Linear(8, width), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(16 * width, 1))


def convolution(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(16, width, 3, padding=1), nn.ReLU(), nn.BatchNorm1d(width), nn.Flatten(), nn.Linear(8 * width, 1)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "transformer 32": lambda: attention(32),
    "convolution 64": lambda: convolution(64),
    "gru 32": lambda: Recurrent(32),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 1)),
    "mlp 64": lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)),
    "mlp 512": lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 1)),
}


def maker(make_model: Callable[[], nn.Module]) -> Callable[[], Callable[[torch.Tensor], None]]:
    def make_step() -> Callable[[torch.Tensor], None]:
        torch.manual_seed(0)
        model = make_model().to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        return step

    return make_step


def measure_model(make_model: Callable[[], nn.Module], *, largest: int, rounds: int) -> dict[str, Any]:
    make_step, sample = maker(make_model), torch.randn(8, 16, 8, device=DEVICE)
    make_step()(sample.repeat(min(largest, 4096) // 8, 1, 1))  # the first large step makes the workspaces of libraries, which stay
    gc.collect()
    before = torch.cuda.memory_allocated() if DEVICE.type == "cuda" else 0
    begin = time.perf_counter()
    choice = batch_size(make_step, sample, largest=largest)
    seconds = time.perf_counter() - begin
    left = torch.cuda.memory_allocated() - before if DEVICE.type == "cuda" else 0
    sizes = sorted(
        {size for power in range(1, 30) for size in (2**power, 3 * 2 ** (power - 1)) if min(SMALLEST, largest) <= size <= largest}
        | {choice.size}
    )
    sweep = _Measure(make_step, lambda size: sample[torch.arange(size, device=DEVICE) % 8], DEVICE, None, lambda line: None)
    rates = {size: sweep(size).samples_per_second for size in sizes}
    finalists = sorted(rates, key=rates.__getitem__)[-3:]
    sweep.in_turn(finalists)
    best = max(finalists, key=lambda size: sweep.points[size].samples_per_second)
    shares = [1.0] if best == choice.size else []
    while best != choice.size and len(shares) < rounds * 12:
        pairs = sweep.rounds([choice.size, best])
        assert pairs is not None
        shares += [seconds_best * choice.size / (seconds_chosen * best) for seconds_chosen, seconds_best in pairs]
    fast = next(size for size in sizes if rates[size] >= 0.95 * rates[best])
    return {
        "chosen": choice.size,
        "best of the sweep": best,
        "smallest within 5 % in the sweep": fast,
        "share of the best": record.spread(shares),
        "seconds": round(seconds, 1),
        "sizes measured": len(choice.curve),
        "sizes of the sweep": len(sizes),
        "bytes left on the GPU": left,
    }


def measure_out_of_memory() -> dict[str, Any]:
    """A search whose largest sizes do not fit."""
    make_step, sample = maker(MODELS["mlp 512"]), torch.randn(8, 16, 8, device=DEVICE)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + LITTLE_MEMORY) / torch.cuda.mem_get_info()[1])
    before, begin = torch.cuda.memory_allocated(), time.perf_counter()
    try:
        choice = batch_size(make_step, sample, largest=1 << 22)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {
        "chosen": choice.size,
        "limit": choice.limit,
        "largest that fits": max(one.size for one in choice.curve if one.fits),
        "smallest that does not fit": min(one.size for one in choice.curve if not one.fits),
        "seconds": round(time.perf_counter() - begin, 1),
        "bytes left on the GPU": torch.cuda.memory_allocated() - before,
    }


def main() -> None:
    options = record.arguments(QUESTION)
    if DEVICE.type == "cpu":
        torch.set_num_threads(1)
    names = list(MODELS)[:1] if options.small else list(MODELS)
    found: dict[str, Any] = {}
    answer: dict[str, Any] = {"device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu", "models": found}
    for name in names:
        begin = time.perf_counter()
        found[name] = measure_model(MODELS[name], largest=16 if options.small else LARGEST, rounds=options.rounds or 3)
        print(f"{name} ({time.perf_counter() - begin:.0f} s): {found[name]}", flush=True)
        answer["least share of the best"] = min(value["share of the best"]["median"] for value in found.values())
        answer["most seconds"] = max(value["seconds"] for value in found.values())
        if not options.small:
            record.save(f"{'bench' if DEVICE.type == 'cpu' else 'gpu'}_tune_batch", QUESTION, answer, show=False)
    if DEVICE.type == "cuda":
        answer["out of memory"] = measure_out_of_memory()
        print(answer["out of memory"], flush=True)
        record.save("gpu_tune_batch", QUESTION, answer, show=False)


if __name__ == "__main__":
    main()
