"""What does a step of the TFA model cost on a GPU: its authors' loop against the recipe, with windows and with runs of rows?

Needs a GPU. Sizes are the authors': 1024 windows of 48 rows, 55 features, 404,737 weights. All sides begin with the same weights
and see the same windows in the same order; losses of 100 steps are compared. Times are wall times of epochs, in turns.

    --part step       the sides against each other (the result file is of this part)
    --part profile    the kernels of a step, and what share of it is of which kind
    --part kernel     attention within windows alone: ours against torch's
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import stoker
from benchmarks import record
from benchmarks.before import tfa_loop
from stoker_recipes.tfa import model as attention
from stoker_recipes.tfa.model import Tfa

QUESTION = (
    "What does a step of the TFA model cost on a GPU: its authors' loop against the recipe, with windows and with runs of rows?"
)
DEVICE = "cuda"
BATCH, LENGTH, FEATURES = 1024, 48, 55
STEPS = 100
PROFILED = 20
LOGGED = 10
EPOCHS = 3
"""Of a round; the first does not count."""

SIDES = {
    "windows, bf16, compiled": ("windows", "bf16", True),
    "runs, bf16, compiled": ("runs", "bf16", True),
    "windows, tf32": ("windows", "tf32", False),
    "windows, fp32": ("windows", "fp32", False),
    "runs, fp32": ("runs", "fp32", False),
}
KINDS = {
    "attention": ("forward", "backward"),
    "products of matrices": ("nvjet", "cutlass", "gemm", "splitK", "cublas"),
    "optimizer, clipping, guard": ("multi_tensor_apply", "amp_"),
    "norms, GELU, sums": ("triton_", "reduce_kernel"),
}
PARTS = ("step", "profile", "kernel")


def main() -> None:
    """The parts that are asked for."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--part", action="append", choices=PARTS, help="Which parts; all without it.")
    parser.add_argument("--side", action="append", choices=tuple(SIDES), help="Which of our sides; all without it.")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    parts = options.part or PARTS
    sides = options.side or list(SIDES)
    begin = time.perf_counter()
    answer: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    if "kernel" in parts:
        answer["attention alone"] = kernels()
        print(f"attention alone, after {time.perf_counter() - begin:.0f} s", answer["attention alone"], flush=True)
    if "step" in parts or "profile" in parts:
        bench = Bench(sides)
        print(f"compiled after {time.perf_counter() - begin:.0f} s", flush=True)
        if "step" in parts:
            answer |= bench.steps(options.rounds)
            print(f"steps after {time.perf_counter() - begin:.0f} s", flush=True)
        if "profile" in parts:
            answer["shares of kernel time"] = bench.shares()
            print(f"profile after {time.perf_counter() - begin:.0f} s", flush=True)
    print(answer) if options.small or "step" not in parts else record.save("gpu_tfa", QUESTION, answer)
    print(f"{time.perf_counter() - begin:.0f} s in all", flush=True)


class Marks:
    """A writer that keeps losses, and when epochs end; by then the device has done all of an epoch."""

    def __init__(self) -> None:
        self.means: list[float] = []
        self.ends: list[float] = []

    def write(self, step: int, values: Any) -> None:
        if "rate" in values:
            self.means.append(values["loss"])
        else:
            self.ends.append(time.perf_counter())

    def close(self) -> None:
        pass


class Bench:
    """The authors' loop and our sides, on the same rows."""

    def __init__(self, names: list[str]) -> None:
        rng = np.random.default_rng(0)
        num_rows = BATCH * STEPS + LENGTH - 1
        self.x = rng.standard_normal((num_rows, FEATURES), dtype=np.float32)
        noise = rng.standard_normal((num_rows, 1), dtype=np.float32)
        self.y = (self.x[:, :1] + noise > 0).astype(np.float32)
        self.pos_weight = float((1 - self.y.mean()) / self.y.mean())
        mean, std = torch.from_numpy(self.x.mean(0)), torch.from_numpy(self.x.std(0))
        torch.manual_seed(0)
        self.first = tfa_loop.Tfa(mean, std)
        store = stoker.Store.from_arrays(lengths=[num_rows], x=self.x, y=self.y[:, 0])
        views = {
            "windows": (stoker.Windows(LENGTH, tail="drop"), BATCH),
            "runs": (stoker.Windows(BATCH + LENGTH - 1, stride=BATCH, tail="drop"), 1),
        }
        self.feeds = {
            name: stoker.Feed(
                store, view, batch_size=batch, device=DEVICE, loading=stoker.feed.Loading(residency="device"), last_batch="drop"
            )
            for name, (view, batch) in views.items()
        }
        self.trainers: dict[str, tuple[stoker.Trainer, Marks, stoker.Feed]] = {}
        self.losses: dict[str, list[float]] = {}
        criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([self.pos_weight], device=DEVICE))

        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            value: torch.Tensor = criterion(model(batch["x"]), batch["y"][:, LENGTH - 1 :])
            return value

        for name in names:
            kind, precision, is_compiled = SIDES[name]
            model = Tfa(mean=mean, std=std).to(DEVICE)
            model.load_state_dict(self.first.state_dict())
            marks = Marks()
            trainer = stoker.Trainer(
                model,
                loss,
                torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01),
                precision=precision,
                execution=stoker.train.Execution(fused=True, graph=True, compile=is_compiled),
                max_grad_norm=1.0,
                callbacks=[marks],
                logging=stoker.train.Logging(every=LOGGED),
                progress=False,
            )
            began = time.perf_counter()
            trainer.fit(self.feeds[kind], epochs=1)
            print(f"  {name}: first epoch {time.perf_counter() - began:.0f} s", flush=True)
            self.losses[name] = list(marks.means)
            self.trainers[name] = trainer, marks, self.feeds[kind]

    def authors(self) -> float:
        """Seconds per step of the authors' loop; the first steps do not count."""
        model = copy.deepcopy(self.first).to(DEVICE)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        read = tfa_loop.train(
            model, self.x, self.y, pos_weight=self.pos_weight, batch=BATCH, length=LENGTH, num_steps=STEPS, device=DEVICE
        )
        seconds = (time.perf_counter() - begin) / STEPS
        self.losses["authors' loop"] = [float(np.mean(read[i : i + LOGGED])) for i in range(0, STEPS, LOGGED)]
        return seconds

    def ours(self, name: str) -> float:
        """Seconds per step of one of our sides, from the end of the first epoch on."""
        trainer, marks, feed = self.trainers[name]
        marks.ends.clear()
        trainer.fit(feed, epochs=EPOCHS)
        return (marks.ends[-1] - marks.ends[0]) / (EPOCHS - 1) / len(feed)

    def steps(self, rounds: int) -> dict[str, Any]:
        """All sides in turns."""
        self.authors()
        times: dict[str, list[float]] = {"authors' loop": [], **{name: [] for name in self.trainers}}
        for _ in range(rounds):
            times["authors' loop"].append(self.authors())
            for name in self.trainers:
                times[name].append(self.ours(name))
            print("  " + ", ".join(f"{name} {1e3 * values[-1]:.3f} ms" for name, values in times.items()), flush=True)
        base = self.losses["authors' loop"]
        return {
            "milliseconds per step": {name: record.spread([1e3 * value for value in values]) for name, values in times.items()},
            "faster than the authors' loop": {name: record.ratio(times["authors' loop"], times[name]) for name in self.trainers},
            f"losses of {STEPS} steps differ from the authors' by at most (relative)": {
                name: float(f"{max(abs(a - b) / abs(b) for a, b in zip(self.losses[name], base, strict=False)):.3g}")
                for name in self.trainers
            },
        }

    def shares(self) -> dict[str, Any]:
        """What kernels a step consists of; the largest are shown."""
        found: dict[str, Any] = {}
        for name, (trainer, _, feed) in self.trainers.items():
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                trainer.fit(Some(feed, PROFILED), epochs=1)
                torch.cuda.synchronize()
            events = [event for event in seen.key_averages() if event.device_time_total]
            events.sort(key=lambda event: -event.device_time_total)
            total = sum(event.device_time_total for event in events)
            print(f"{name}: {len(events)} kinds of kernels")
            for event in events[:12]:
                print(
                    f"  {event.device_time_total / total:6.1%}  {event.device_time_total / event.count:6.1f} us  {event.key[:110]}"
                )
            parts = dict.fromkeys([*KINDS, "rest"], 0.0)
            for event in events:
                parts[kind_of(event.key)] += event.device_time_total / total
            found[name] = {kind: round(share, 3) for kind, share in parts.items()}
        return found


class Some:
    """The first batches of a feed."""

    def __init__(self, feed: stoker.Feed, number: int) -> None:
        self._feed, self._number = feed, number
        self.device = feed.device

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._feed), self._number)


def kind_of(kernel: str) -> str:
    """What a kernel is for, by its name."""
    if kernel in KINDS["attention"]:
        return "attention"
    return next((kind for kind, marks in KINDS.items() if kind != "attention" and any(mark in kernel for mark in marks)), "rest")


def kernels() -> dict[str, Any]:
    """Microseconds of attention within 1024 windows, forward and backward."""
    qkv = torch.randn(BATCH, LENGTH, 384, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(BATCH, LENGTH, 128, device=DEVICE, dtype=torch.bfloat16)
    run = torch.randn(1, BATCH + LENGTH - 1, 384, device=DEVICE, dtype=torch.bfloat16)
    found: dict[str, Any] = {
        "ours": {
            "forward": microseconds(lambda: attention.window_attention(qkv.detach(), 8, LENGTH)),
            "forward, one run": microseconds(lambda: attention.window_attention(run, 8, LENGTH)),
            "backward": microseconds(lambda: attention.window_attention_backward(qkv.detach(), gradient, 8, LENGTH)),
        }
    }
    plain = attention.attend_plain(qkv, heads=8, length=LENGTH)
    found["torch"] = {
        "forward": microseconds(lambda: attention.attend_plain(qkv.detach(), heads=8, length=LENGTH)),
        "backward": microseconds(lambda: torch.autograd.grad(plain, qkv, gradient, retain_graph=True)),
    }
    with torch.no_grad():
        exact = attention.attend_plain(qkv.double(), heads=8, length=LENGTH)
        found["largest difference from float64"] = {
            "ours": float((attention.window_attention(qkv, 8, LENGTH) - exact).abs().max()),
            "torch": float((plain - exact).abs().max()),
        }
    return found


def microseconds(run: Callable[[], Any], number: int = 50) -> float:
    """Of device time, by events."""
    for _ in range(5):
        run()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(number):
        run()
    end.record()
    torch.cuda.synchronize()
    return round(1e3 * begin.elapsed_time(end) / number, 1)


if __name__ == "__main__":
    main()
