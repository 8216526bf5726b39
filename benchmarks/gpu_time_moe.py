"""How fast is a step of Time-MoE 50M on a GPU, the authors' way and the recipe's, and are the losses the same?

Needs a GPU (without one, `--small` runs all parts with a tiny model, to see that they run). Data lies on the device, so that
nothing but the model is measured; the recipe's steps are those of the trainer, the feed included. Parts can be chosen by `--part`:

    step        milliseconds a step, memory, useful points a second, share of the peak: both ways, 8 x 2048 and 32 x 2048
    curve       losses of 200 steps from the same weights on the same batches
    profile     kernels of a step of the recipe, by time
    recipe      milliseconds a step of the recipe alone, 8 x 2048
    attention   one attention, forward and backward, by each kernel that torch has, and by ours with each choice of blocks
    experts     the grouped products, by torch's own kernel and by ours with each choice of tiles
    whole       a step with the model compiled as a whole instead of layer by layer
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import stoker
from benchmarks import record
from benchmarks.before.time_moe_original import OriginalTimeMoe
from benchmarks.gpu_trainer import Losses
from stoker.recipes.time_moe import SIZES, Size, TimeMoe, time_moe_loss
from stoker.recipes.time_moe.weights import taken_apart

QUESTION = "How fast is a step of Time-MoE 50M on a GPU, the authors' way and the recipe's, and are the losses the same?"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = DEVICE == "cuda"
PEAK = 790e12
"""Operations a second of a large bfloat16 product, measured on this GPU."""
RATE = 1e-4
RECIPE = {"lr": RATE, "betas": (0.9, 0.95), "weight_decay": 0.1}
PRECISIONS = ("bf16", "tf32") if ON_GPU else ("fp32",)


def main() -> None:
    """The chosen parts."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--part", default="step,curve", help=f"some of {', '.join(PARTS)}; joined by commas")
    parser.add_argument("--precision", default=None, help="profile and whole: bf16 or tf32")
    options = parser.parse_args()
    answer: dict[str, Any] = {"gpu": torch.cuda.get_device_name() if ON_GPU else "none", "torch": torch.__version__}
    setting = Setting(options.small or not ON_GPU, options.precision or PRECISIONS[0])
    begin = time.perf_counter()
    for name in options.part.split(","):
        answer[name] = PARTS[name](setting)
        print(f"part {name} done after {time.perf_counter() - begin:.0f} s", flush=True)
        if not options.small and ON_GPU and "step" in answer:
            record.save("gpu_time_moe", QUESTION, answer)


class Setting:
    """What is measured."""

    def __init__(self, is_small: bool, precision: str) -> None:
        self.size = SIZES["tiny" if not ON_GPU else "50m"]
        self.length = 64 if not ON_GPU else 2048
        self.batch = 8 if ON_GPU else 2
        self.steps = 10 if is_small else 24
        self.curve_steps = 20 if is_small else 200
        self.curve_batch = 2
        """Few rows, so that the authors' way, whose host waits 96 times a step, has time for 200 steps."""
        self.precision = precision
        self.use_size(self.size)

    def use_size(self, size: Size) -> None:
        """Of this size, and from weights that are always the same."""
        self.size = size
        torch.manual_seed(0)
        self._first = TimeMoe(size).state_dict()

    def model(self) -> TimeMoe:
        """The recipe's model, always with the same weights."""
        model = TimeMoe(self.size).to(DEVICE)
        model.load_state_dict(self._first)
        return model

    def original(self) -> OriginalTimeMoe:
        """The authors' model with these weights."""
        model = OriginalTimeMoe(self.size)
        model.load_state_dict(taken_apart(self._first, self.size))
        return model.to(DEVICE)

    def feed(self, steps: int, batch: int | None = None) -> stoker.Feed:
        """Waves with noise, normalised, in order."""
        batch = batch or self.batch
        rng = np.random.default_rng(0)
        count = steps * batch
        t = np.arange(self.length + 1, dtype=np.float32)
        series = sum(
            rng.uniform(0.3, 1.5, (count, 1)).astype(np.float32)
            * np.sin(t / rng.uniform(3, 60, (count, 1)).astype(np.float32) + rng.uniform(0, 6, (count, 1)).astype(np.float32))
            for _ in range(2)
        ) + rng.normal(0, 0.3, (count, len(t))).astype(np.float32)
        series = (series - series.mean(1, keepdims=True)) / series.std(1, keepdims=True)
        store = stoker.Store.from_arrays(x=series.astype(np.float32))
        residency = "device" if ON_GPU else "host"
        return stoker.Feed(
            store, stoker.Segments(self.length + 1), batch_size=batch, device=DEVICE, residency=residency, last="drop", masks=False
        )


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Each point from those before it."""
    return time_moe_loss(model, {"x": batch["x"][:, :-1], "y": batch["x"][:, 1:]})


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def reset_memory() -> None:
    gc.collect()
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float:
    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if ON_GPU else 0.0


def trainer_of(
    setting: Setting, model: TimeMoe, precision: str, *, writers: Iterable[Any] = (), whole: bool = False
) -> stoker.Trainer:
    """The recipe's steps: layers compiled, the step a graph."""
    if ON_GPU and not whole:
        model.compile(dynamic=False)
    return stoker.Trainer(
        model,
        loss_of,
        torch.optim.AdamW(model.parameters(), fused=True, **RECIPE),
        precision=precision,
        graph=ON_GPU,
        compile=whole,
        clip=1.0,
        writers=list(writers),
        log_every=10,
        progress=False,
    )


def original_steps(
    setting: Setting, batches: Iterator[dict[str, Tensor]], *, precision: str, model: OriginalTimeMoe
) -> Iterator[Tensor]:
    """The authors' loop: eager, foreach AdamW, the loss read by whoever wants it."""
    optimizer = torch.optim.AdamW(model.parameters(), **RECIPE)
    for batch in batches:
        x, y = batch["x"][:, :-1], batch["x"][:, 1:]
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = model(x, y, torch.ones_like(x, dtype=torch.int32))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.detach()


def numbers(setting: Setting, seconds: float, batch: int, **others: Any) -> dict[str, Any]:
    """A line of the table."""
    return {
        "ms a step": round(1e3 * seconds, 3),
        "it/s": round(1 / seconds, 2),
        "useful points/s": round(batch * setting.length / seconds),
        "share of the peak": round(setting.size.flops(batch, setting.length) / seconds / PEAK, 4),
        "peak GiB": peak_gib(),
        **others,
    }


def step(setting: Setting) -> dict[str, Any]:
    """Milliseconds a step of both ways."""
    found: dict[str, Any] = {}
    for batch in (setting.batch, 4 * setting.batch):
        steps = setting.steps if batch == setting.batch else max(4, setting.steps // 4)
        feed = setting.feed(steps, batch)
        for precision in PRECISIONS if batch == setting.batch else PRECISIONS[:1]:
            name = f"recipe {precision}, {batch} x {setting.length}"
            found[name] = recipe_step(setting, feed, precision, batch)
            print(name, found[name], flush=True)
        if batch > setting.batch:
            break
        for precision in ("fp32", "bf16"):
            name = f"original {precision}, {batch} x {setting.length}"
            found[name] = original_step(setting, feed, precision, batch)
            print(name, found[name], flush=True)
    return found


def recipe_step(setting: Setting, feed: stoker.Feed, precision: str, batch: int, *, whole: bool = False) -> dict[str, Any]:
    """What four epochs take longer than one, so that compiling and capturing do not count."""
    reset_memory()
    model = setting.model()
    trainer = trainer_of(setting, model, precision, whole=whole)
    seconds, peaks = [], []
    for epochs in (1, 1, 4):
        synchronize()
        begin = time.perf_counter()
        result = trainer.fit(feed, epochs=epochs)
        synchronize()
        seconds.append(time.perf_counter() - begin)
        peaks.append(peak_gib())
    a_step = (seconds[2] - seconds[1]) / 3 / len(feed)
    return numbers(
        setting,
        a_step,
        batch,
        **{"wait for the feed": round(result.wait, 5), "first epoch, s": round(seconds[0], 1), "setup": str(result.setup)},
    )


def original_step(setting: Setting, feed: stoker.Feed, precision: str, batch: int) -> dict[str, Any]:
    """Steps of the authors' loop, after two that are not counted."""
    reset_memory()
    count = 10
    steps = original_steps(setting, itertools.cycle(feed), precision=precision, model=setting.original())
    for _ in range(2):
        next(steps)
    synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        next(steps)
    synchronize()
    return numbers(setting, (time.perf_counter() - begin) / count, batch)


def curve(setting: Setting) -> dict[str, Any]:
    """Means of ten losses at a time, along the same steps."""
    feed = setting.feed(setting.curve_steps, setting.curve_batch)
    curves: dict[str, list[float]] = {}
    for precision in PRECISIONS[:1]:
        kept = Losses()
        trainer_of(setting, setting.model(), precision, writers=[kept]).fit(feed, epochs=1)
        curves[f"recipe {precision}"] = kept.means
        print(precision, [round(loss, 4) for loss in kept.means], flush=True)
    precision = "bf16" if ON_GPU else "fp32"
    original = f"original {precision}"
    # A choice between experts flips by the last bit, and then trainings part: how far, the original says against itself.
    for name, model in ((original, setting.original()), (f"{original}, last bits of weights changed", nudged(setting.original()))):
        losses = torch.stack(list(original_steps(setting, iter(feed), precision=precision, model=model))).tolist()
        curves[name] = [float(np.mean(losses[i : i + 10])) for i in range(0, len(losses), 10)]
        print(name, [round(loss, 4) for loss in curves[name]], flush=True)
    means = curves[original]
    apart = {
        name: [abs(a - b) / b for a, b in zip(found, means, strict=True)] for name, found in curves.items() if name != original
    }
    found = {
        "rows x points": f"{setting.curve_batch} x {setting.length}",
        "losses, means of 10 steps": {name: [round(loss, 5) for loss in values] for name, values in curves.items()},
        "apart from the original, share of the loss": {
            name: {"first half": max(values[: len(values) // 2]), "mean": float(np.mean(values)), "max": max(values)}
            for name, values in apart.items()
        },
    }
    print(found["apart from the original, share of the loss"], flush=True)
    return found


def nudged(model: OriginalTimeMoe) -> OriginalTimeMoe:
    """The same weights but for their last bits."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 1e-7 * torch.randn_like(weight))
    return model


def profile(setting: Setting) -> dict[str, Any]:
    """Kernels of three steps without a graph, by time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    model, feed = setting.model(), setting.feed(8)
    if ON_GPU:
        model.compile(dynamic=False)
    torch.set_float32_matmul_precision("high" if setting.precision == "tf32" else "highest")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **RECIPE)
    batches = itertools.cycle(feed)

    def one() -> None:
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=setting.precision == "bf16"):
            loss = loss_of(model, next(batches))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        one()
    synchronize()
    with profiler(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])]) as seen:
        for _ in range(3):
            one()
        synchronize()
    kernels = [
        event
        for event in seen.key_averages()
        if event.self_device_time_total > 0 and event.device_type == torch.autograd.DeviceType.CUDA
    ]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in kernels) / 3e3
    print(f"kernels of a step: {total:.2f} ms, {sum(event.count for event in kernels) // 3} launches")
    for event in kernels[:30]:
        milliseconds, count = event.self_device_time_total / 3e3, max(1, event.count // 3)
        print(f"{milliseconds:8.3f} ms {count:5d} x {1e3 * milliseconds / count:8.1f} us  {event.key[:110]}")
    return {"ms of kernels": total}


def timed(run: Callable[[], Any], repeats: int = 20) -> float:
    """Milliseconds of a call, by events of the device."""
    for _ in range(3):
        run()
    if not ON_GPU:
        return math.nan
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(repeats):
        run()
    last.record()
    torch.cuda.synchronize()
    return round(first.elapsed_time(last) / repeats, 4)


def compare(title: str, variants: dict[str, Callable[[], Any]], *, threads: int = 8) -> dict[str, float]:
    """Milliseconds of each variant; what cannot run is told. Kernels are compiled side by side."""

    def attempt(run: Callable[[], Any]) -> str | None:
        try:
            run()
        except Exception as error:
            return (str(error).splitlines() or [type(error).__name__])[0][:100]
        return None

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(attempt, variants.values()))
    failures = {name: attempt(run) for name, run in variants.items()}
    found = {name: timed(run) for name, run in variants.items() if failures[name] is None}
    print(title, {name: failures[name] or found[name] for name in variants}, flush=True)
    return found


def best_of(found: dict[str, float]) -> str:
    return min(found, key=lambda name: found[name] if found[name] == found[name] else 0.0)


def attention(setting: Setting) -> dict[str, Any]:
    """One attention at 8 x 2048, by each kernel; the best blocks of our own are used from here on."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from stoker.recipes.time_moe import attention_kernels as kernels
    from stoker.recipes.time_moe.attention import runs_of

    found: dict[str, Any] = {}
    shape = (setting.batch, setting.length, 3, setting.size.heads, setting.size.head_width)
    runs = runs_of((torch.arange(setting.length, device=DEVICE) // 300).expand(setting.batch, -1))
    for name, dtype in (("bf16", torch.bfloat16), ("tf32", torch.float32)):
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        q, k, v = torch.randn(shape, device=DEVICE, dtype=dtype).unbind(2)
        gradient = torch.randn(q.shape, device=DEVICE, dtype=dtype)

        def by(backend: Any, q: Tensor = q, k: Tensor = k, v: Tensor = v, gradient: Tensor = gradient) -> Callable[[], Any]:
            heads = [part.transpose(1, 2).detach().requires_grad_() for part in (q, k, v)]

            def run() -> None:
                with sdpa_kernel(backend):
                    out = F.scaled_dot_product_attention(*heads, is_causal=True)
                torch.autograd.grad(out, heads, gradient.transpose(1, 2))

            return run

        backends = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION") if name != "tf32" else ("EFFICIENT_ATTENTION",)
        variants = {one: by(getattr(SDPBackend, one)) for one in backends}
        theirs = compare(f"{name}: torch, forward and backward", variants, threads=1)  # the choice is that of the process
        out, levels = kernels.forward(q, k, v, None)
        suffix = "_WIDE" if name == "tf32" else ""
        forwards = [(128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 2), (128, 32, 4, 3), (64, 32, 4, 2)]
        queries = [(128, 64, 4, 3), (64, 64, 4, 3), (128, 64, 8, 2), (64, 32, 4, 2), (128, 32, 4, 3)]
        keys = [(64, 128, 4, 3), (64, 64, 4, 3), (64, 128, 8, 2), (32, 64, 4, 2), (32, 128, 4, 3)]

        def forward(blocks: tuple[int, ...], q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Callable[[], Any]:
            return lambda: kernels.forward(q, k, v, None, blocks=kernels.Blocks(*blocks))

        def backward(given: tuple[Tensor, ...] = (q, k, v, out, levels, gradient), **blocks: Any) -> Callable[[], Any]:
            return lambda: kernels.backward(*given, None, **blocks)

        found[name] = {"torch": theirs}
        for title, constant, variants in (
            ("forward", "FORWARD", {str(one): forward(one) for one in forwards}),
            ("backward by queries", "TO_QUERIES", {str(one): backward(to_queries=kernels.Blocks(*one)) for one in queries}),
            ("backward by keys", "TO_KEYS", {str(one): backward(to_keys=kernels.Blocks(*one)) for one in keys}),
        ):
            times = compare(f"{name}: {title}", variants)
            best = best_of(times)
            setattr(kernels, constant + suffix, kernels.Blocks(*(int(one) for one in best.strip("()").split(","))))
            found[name][title] = {"best": best, **times}
        found[name]["ours"] = [timed(forward(getattr(kernels, "FORWARD" + suffix))), timed(backward())]
        found[name]["ours, packed (300 each)"] = [
            timed(lambda q=q, k=k, v=v: kernels.forward(q, k, v, runs)),
            timed(lambda given=(q, k, v, out, levels, gradient): kernels.backward(*given, runs)),
        ]
        print(name, "ours, forward and backward", found[name]["ours"], "packed", found[name]["ours, packed (300 each)"], flush=True)
    torch.set_float32_matmul_precision("highest")
    return found


def experts(setting: Setting) -> dict[str, Any]:
    """The products of the experts of one layer; the best tiles are used from here on."""
    from stoker.recipes.time_moe import grouped_kernels as kernels
    from stoker.recipes.time_moe.routing import route

    found: dict[str, Any] = {}
    size, positions = setting.size, setting.batch * setting.length
    liking = torch.randn(positions, size.experts, device=DEVICE) + torch.linspace(0, 3, size.experts, device=DEVICE)
    chosen = liking.topk(size.top_k).indices  # uneven, as it is early in a training
    routing = route(chosen, size.experts)
    print("choices of each expert", routing.counts.tolist(), "sort by expert, ms", timed(lambda: route(chosen, size.experts)))
    ends, rows = routing.ends, len(routing.choice)
    for precision, dtype in (("bf16", torch.bfloat16), ("tf32", torch.float32)):
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        inner, suffix = (32, "_WIDE") if precision == "tf32" else (64, "")
        totals: dict[str, dict[str, float]] = {"rows": {}, "weights": {}}
        for name, n, k in (("gate and up", 2 * size.expert_width, size.hidden), ("down", size.hidden, size.expert_width)):
            x, g = torch.randn(rows, k, device=DEVICE, dtype=dtype), torch.randn(rows, n, device=DEVICE, dtype=dtype)
            w = torch.randn(size.experts, n, k, device=DEVICE, dtype=dtype)
            forward = [(128, 128, inner, 8, 3), (128, 128, inner, 4, 4), (128, 64, inner, 4, 4)]
            backward = [(128, 128, inner, 8, 3, 1024), (128, 128, inner, 8, 3, 2048), (128, 128, inner, 4, 4, 1024)]
            backward += [(128, 128, inner, 8, 3, 512), (128, 64, inner, 4, 4, 1024), (128, 128, inner, 8, 3, 0)]

            def by_rows(tile: tuple[int, ...], given: Tensor, transposed: bool, w: Tensor = w) -> Callable[[], Any]:
                return lambda: kernels.rows_by_group(given, w, ends, transposed=transposed, tile=kernels.Tile(*tile))

            def by_weights(tile: tuple[int, ...], x: Tensor = x, g: Tensor = g) -> Callable[[], Any]:
                return lambda: kernels.weights_by_group(g, x, ends, tile=kernels.Tile(*tile))

            if precision == "bf16":
                theirs = {
                    "forward": timed(lambda x=x, w=w: torch._grouped_mm(x, w.transpose(1, 2), offs=ends)),
                    "to rows": timed(lambda g=g, w=w: torch._grouped_mm(g, w, offs=ends)),
                    "to weights": timed(lambda x=x, g=g: torch._grouped_mm(g.T, x, offs=ends)),
                }
                print(f"{name}, {precision}: torch", theirs, flush=True)
                found[f"{name}, {precision}, torch"] = theirs
            for title, kind, variants in (
                ("forward", "rows", {str(one): by_rows(one, x, True) for one in forward}),
                ("to rows", "rows", {str(one): by_rows(one, g, False) for one in forward}),
                ("to weights", "weights", {str(one): by_weights(one) for one in backward}),
            ):
                times = found[f"{name}, {precision}, {title}"] = compare(f"{name}, {precision}: {title}", variants)
                for one, milliseconds in times.items():
                    totals[kind][one] = totals[kind].get(one, 0.0) + milliseconds
        for kind, constant in (("rows", "ROWS_TILE"), ("weights", "WEIGHTS_TILE")):
            best = best_of(totals[kind])
            setattr(kernels, constant + suffix, kernels.Tile(*(int(one) for one in best.strip("()").split(","))))
            print(precision, kind, "best", best, flush=True)
    torch.set_float32_matmul_precision("highest")
    return found


def recipe(setting: Setting) -> dict[str, Any]:
    """Steps of the recipe alone."""
    feed = setting.feed(setting.steps)
    found = {}
    for precision in PRECISIONS:
        found[precision] = recipe_step(setting, feed, precision, setting.batch)
        print(f"recipe {precision}", found[precision], flush=True)
    return found


def whole(setting: Setting) -> dict[str, Any]:
    """A step with the model compiled as a whole."""
    found = recipe_step(setting, setting.feed(setting.steps), setting.precision, setting.batch, whole=ON_GPU)
    print(found, flush=True)
    return found


PARTS = {
    "step": step,
    "curve": curve,
    "recipe": recipe,
    "profile": profile,
    "attention": attention,
    "experts": experts,
    "whole": whole,
}

if __name__ == "__main__":
    main()
