"""What does a batch cost on a GPU: gathered there, or gathered by the CPU and copied ahead of the step?

Needs a GPU. The columns are random numbers; a step is a matmul repeated for a given number of milliseconds. Device times
are those of CUDA events; the copy that gathers are compared with reads and writes as many bytes within the device.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

import stoker
from benchmarks import record

QUESTION = "What does a batch cost on a GPU: gathered there, or gathered by the CPU and copied ahead of the step?"
DEVICE = "cuda"
IN_A_GRAPH = 10


def main() -> None:
    """All measurements."""
    options = record.arguments(QUESTION)
    scale = 16 if options.small else 1
    answer: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "device residency": {},
        "host residency": {},
    }
    copy = copy_bandwidth(2**31 // scale)
    answer["copy within the device, TB/s (read and write)"] = round(copy / 1e12, 2)
    rng = np.random.default_rng(0)
    segments = stoker.Store.from_arrays(x=rng.standard_normal((160_000 // scale, 2048), dtype=np.float32))
    rows = rng.standard_normal((2_000_000 // scale, 55), dtype=np.float32)
    bars = stoker.Store.from_arrays(lengths=[len(rows)], x=rows)
    cases = {
        "segments of 2048, batch 256": (segments, stoker.Segments(2048), 256),
        "segments of 2048, batch 4096": (segments, stoker.Segments(2048), 4096),
        "windows of 48 x 55, batch 1024": (bars, stoker.Windows(48), 1024),
        "windows of 48 x 55, batch 8192": (bars, stoker.Windows(48), 8192),
    }
    ragged = np.diff(np.linspace(0, rows.size, 40_000 // scale).astype(np.int64))
    uneven = stoker.Store.from_arrays(lengths=ragged, x=rows.reshape(-1)[: ragged.sum()])
    cases["ragged series in padded segments of 2048, batch 4096"] = (uneven, stoker.Segments(2048), 4096)
    cases["the same without masks"] = (uneven, stoker.Segments(2048), 4096)
    for name, (store, view, batch_size) in cases.items():
        answer["device residency"][name] = resident(store, view, batch_size, copy, masks=False if "without" in name else None)
        print(name, answer["device residency"][name], flush=True)
    gc.collect()  # a graph that is garbage must not be collected in a forked worker of a DataLoader
    for name in ("segments of 2048, batch 256", "windows of 48 x 55, batch 1024"):
        for milliseconds in (1.0, 3.0):
            key = f"{name}, step of {milliseconds:g} ms"
            answer["host residency"][key] = overlapped(*cases[name], milliseconds)
            print(key, answer["host residency"][key], flush=True)
    answer["kept batches unchanged"] = kept_unchanged(segments)
    print(answer) if options.small else record.save("gpu_feed", QUESTION, answer)


def timed(run: Callable[[], Any], repeats: int, *, at_once: int = 1) -> list[float]:
    """Seconds on the device of one run, measured over `at_once` of them, so that the device need not wait for launches."""
    for _ in range(5):
        run()
    seconds = []
    for _ in range(repeats):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(at_once):
            run()
        stop.record()
        stop.synchronize()
        seconds.append(start.elapsed_time(stop) / 1e3 / at_once)
    return seconds


def copy_bandwidth(num_bytes: int) -> float:
    """Bytes read and written a second by a copy within the device."""
    source = torch.randn(num_bytes // 4, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * num_bytes / record.spread(timed(lambda: target.copy_(source), 20))["median"]


def resident(store: stoker.Store, view: Any, batch_size: int, copy: float, *, masks: bool | None) -> dict[str, Any]:
    """Gathers on the device: time there, time of the host, and whether the batches are those of the CPU."""

    def feed(device: str) -> stoker.Feed:
        return stoker.Feed(
            store,
            view,
            batch_size=batch_size,
            order=stoker.Shuffle(0),
            device=device,
            loading=stoker.feed.Loading(residency="device" if device == DEVICE else "host"),
            last_batch="drop",
            returns=stoker.feed.Returns(masks=masks),
        )

    fed = feed(DEVICE)
    num_bytes = 2 * batch_size * view.length * 4 * (store.schema["x"].width or 1)
    endless = itertools.chain.from_iterable(itertools.repeat(fed))
    eager = timed(lambda: next(endless), 20, at_once=20)
    warm_up()
    captured = feed(DEVICE).captured()
    host = [time.perf_counter() for _ in itertools.islice(captured, 60)]
    steps = captured.passes()
    next(steps)
    source = torch.randn(num_bytes // 8 * 16, device=DEVICE).view(16, -1)
    copies = itertools.cycle(source)
    target = torch.empty_like(source[0])
    gathers, plain = as_graph(captured.enqueue), as_graph(lambda: target.copy_(next(copies)))
    replayed, same_size = timed(lambda: (captured.rewind(), gathers()), 10), timed(plain, 10)
    replayed, same_size = [seconds / IN_A_GRAPH for seconds in replayed], [seconds / IN_A_GRAPH for seconds in same_size]
    steps.close()
    equal = all(torch.equal(a["x"], b["x"].cpu()) for a, b in itertools.islice(zip(feed("cpu"), feed(DEVICE), strict=True), 8))
    return {
        "megabytes a batch": round(num_bytes / 2e6, 1),
        "share of the bandwidth of a large copy": record.spread([num_bytes / seconds / copy for seconds in eager]),
        "share of the bandwidth of a large copy, as a graph": record.spread([num_bytes / seconds / copy for seconds in replayed]),
        "share of a copy of the same size, as a graph": record.spread([a / b for a, b in itertools.product(same_size, replayed)]),
        "microseconds on the device a batch, as a graph": round(1e6 * record.spread(replayed)["median"], 1),
        "microseconds of the host a batch, as a graph": round(1e6 * float(np.median(np.diff(host))), 1),
        "batches equal to those of the CPU": equal,
    }


def warm_up() -> None:
    """Let the clocks of the GPU rise."""
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    for _ in range(200):
        a @ a
    torch.cuda.synchronize()


def as_graph(run: Callable[[], Any]) -> Callable[[], None]:
    """A graph of several runs, so that what is measured is the device and not the launches."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_A_GRAPH):
            run()
    return graph.replay


def make_step(milliseconds: float) -> Callable[[torch.Tensor], None]:
    """A training step of about this length on the device, that reads its batch."""
    warm_up()
    a = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
    total = torch.zeros((), device=DEVICE)
    per_product = record.spread(timed(lambda: a @ a, 20, at_once=20))["median"] * 1e3
    repeats = math.ceil(milliseconds / per_product)

    def step(x: torch.Tensor) -> None:
        total.add_(x.sum())
        for _ in range(repeats):
            a @ a

    return step


def overlapped(store: stoker.Store, view: Any, batch_size: int, milliseconds: float) -> dict[str, Any]:
    """A loop fed by the host path, next to the same loop on one batch that is there already, and to a DataLoader."""
    step = make_step(milliseconds)
    feed = stoker.Feed(
        store,
        view,
        batch_size=batch_size,
        order=stoker.Shuffle(0),
        device=DEVICE,
        loading=stoker.feed.Loading(residency="host"),
        last_batch="drop",
    )
    cached = next(iter(feed))["x"].clone()
    num_steps = min(len(feed), 400)

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        """What most people write."""

        def __init__(self) -> None:
            self.x = torch.from_numpy(np.array(store.column("x")))
            if store.uniform_length is not None and view.length == store.uniform_length:
                self.x = self.x.view(-1, view.length)

        def __len__(self) -> int:
            return feed.num_samples

        def __getitem__(self, i: int) -> torch.Tensor:
            return self.x[i] if self.x.shape[-1] == view.length else self.x[i : i + view.length]

    def loop(batches: Iterable[torch.Tensor]) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for x in itertools.islice(batches, num_steps):
            step(x)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def loader(workers: int) -> Iterable[torch.Tensor]:
        made = torch.utils.data.DataLoader(Rows(), batch_size, shuffle=True, num_workers=workers, pin_memory=True, drop_last=True)
        return (x.to(DEVICE, non_blocking=True) for x in made)

    seconds: dict[str, list[float]] = {"cached": [], "feed": [], "DataLoader, 8 workers": []}
    for _ in range(9):
        seconds["cached"].append(loop(itertools.repeat(cached, num_steps)))
        seconds["feed"].append(loop(batch["x"] for batch in feed))
    for _ in range(2):
        seconds["DataLoader, 8 workers"].append(loop(loader(8)))
    seconds["DataLoader, 0 workers"] = [loop(loader(0))]
    base = record.spread(seconds["cached"])["median"]
    pairs = zip(seconds["feed"], seconds["cached"], strict=True)
    return {
        "milliseconds of a step": round(1e3 * base / num_steps, 3),
        "slower than with a batch that is there": record.spread([a / b - 1 for a, b in pairs]),
        "slower with DataLoader, 8 workers": record.spread([s / base - 1 for s in seconds["DataLoader, 8 workers"]]),
        "slower with DataLoader, 0 workers": record.spread([s / base - 1 for s in seconds["DataLoader, 0 workers"]]),
    }


def kept_unchanged(store: stoker.Store) -> bool:
    """Whether batches that are kept hold what they held, after all others were made."""
    feed = stoker.Feed(
        store,
        stoker.Segments(2048),
        batch_size=512,
        order=stoker.Shuffle(1),
        device=DEVICE,
        loading=stoker.feed.Loading(residency="host"),
        last_batch="drop",
    )
    kept = []
    for batch in itertools.islice(feed, 100):
        kept.append((batch["x"], batch["x"].double().sum(dim=1)))
    return all(torch.equal(x.double().sum(dim=1), sums) for x, sums in kept)


if __name__ == "__main__":
    main()
