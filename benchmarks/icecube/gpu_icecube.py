"""How fast does the IceCube model train on a GPU: padded and compiled, and packed?

Needs a GPU (`--small` runs on a CPU, to see that the parts run). Batches of 4,096 events lie on the device, several of them in turn; the
lengths of events have the distribution of the data (55 of 128 DOMs on average). Parts, by `--part`:

    check        outputs and gradients on the GPU (bf16, packed) against float32 on the CPU
    pieces       milliseconds of attention, matmuls, norms and the optimizer, alone
    ours         the packed step as a CUDA graph: events per second, memory
    before       the padded, compiled step
    sustained    `stoker train icecube` on a generated store for `--seconds`: events per second with loading, share of waiting
    orders       mean angular error after training in three orders, with three seeds, on data with and without drift
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import stoker
from benchmarks import record
from stoker_recipes.icecube import generator, training
from stoker_recipes.icecube.losses import VmfLoss
from stoker_recipes.icecube.model import IceCubeModel, IceCubeSize, make_packing, norm, plain_trunk
from stoker_recipes.icecube.optimizer import MuonAdamW

QUESTION = "How fast does the IceCube model train on a GPU: padded and compiled, and packed?"
PEAK = 989e12  # dense bf16 of an H200
TRAIN_FLOPS = {6: 4.01e9, 12: 7.97e9, 24: 15.89e9, 36: 23.81e9}  # per event, padded
USEFUL_FLOPS = {6: 1.46e9, 12: 3.12e9, 24: 6.44e9, 36: 9.76e9}  # per event: true tokens, and CLS alone at the end
EVENTS_OF_ALL = 1.3e9  # ten epochs of 130 million
TILES = (
    (128, 256, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 64, 4, 2), (128, 128, 32, 4, 4), (64, 256, 64, 4, 3), (64, 128, 64, 4, 3),
)  # fmt: skip
"""Of the fused matmuls: rows, columns, terms per step, warps, stages."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def lengths_of(events: int, *, seed: int, max_doms: int = 128) -> Tensor:
    """Numbers of DOMs: log-normal with median 48, cut at 128; mean 55, and 4 % cut."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(events, generator=generator) * 0.571 + 3.871).exp().round().clamp(3, max_doms).long()


class Batch:
    """Random tokens of events with realistic lengths, packed; `padded` gives the same events padded."""

    def __init__(self, events: int, *, seed: int, capacity: int | None = None) -> None:
        lengths = lengths_of(events, seed=seed)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        self.num_doms = int(offsets[-1])
        rows = capacity or self.num_doms
        self.offsets = offsets.int().to(DEVICE)
        tokens = torch.zeros(rows, 256, dtype=torch.bfloat16, device=DEVICE)
        tokens[: self.num_doms] = 0.1 * torch.randn(self.num_doms, 256, device=DEVICE)
        # About 4 % of the numbers of a token are not zero.
        tokens[: self.num_doms, 16:] = 0
        self.tokens = tokens
        self.target = torch.rand(events, 2, device=DEVICE) * torch.tensor([6.28, 3.14], device=DEVICE)
        self.lengths = lengths.to(DEVICE)

    def padded(self) -> tuple[Tensor, Tensor, Tensor]:
        mask = torch.arange(128, device=DEVICE) < self.lengths[:, None]
        tokens = torch.zeros(len(self.lengths), 128, 256, dtype=torch.bfloat16, device=DEVICE)
        tokens[mask] = self.tokens[: self.num_doms]
        return tokens, mask, self.target


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(run: Callable[[], object], *, repeats: int = 10, warm: int = 3) -> float:
    """Median milliseconds."""
    for _ in range(warm):
        run()
    times = []
    for _ in range(repeats):
        synchronize()
        begin = time.perf_counter()
        run()
        synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times)[len(times) // 2]


def randomize(model: IceCubeModel) -> None:
    """Output matrices begin at zero, so that a fresh model computes nothing."""
    for block in model.blocks:
        torch.nn.init.normal_(block.attn.c_proj.weight, std=0.05)
        torch.nn.init.normal_(block.ffn.c_proj.weight, std=0.02)


def check(options: argparse.Namespace) -> dict[str, Any]:
    """Packed bf16 (and float32) on the GPU against plain float32 on the CPU: relative errors of outputs and gradients."""
    model = IceCubeModel(IceCubeSize(layers=3), seed=0)
    randomize(model)
    batch = Batch(64, seed=0, capacity=5000)  # with rows of no event
    tokens, offsets = batch.tokens.float().cpu(), batch.offsets.cpu()
    weight = torch.randn(64, 256)

    def run(kind: str) -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        if kind == "cpu":
            model.cpu()
            out = norm(plain_trunk(model.input_proj(tokens), model, make_packing(offsets, len(tokens))))
        else:
            model.to(DEVICE)
            model.residual = torch.bfloat16 if kind == "bf16 residual" else torch.float32
            junk = [torch.full((1 << 26,), float("nan"), device=DEVICE) for _ in range(4)]  # what is not written is seen
            del junk
            with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=kind != "fp32"):
                out = model.embed(tokens.to(DEVICE), offsets.to(DEVICE))
        (out.float() * weight.to(out.device)).sum().backward()
        return out.detach().float().cpu(), {n: p.grad.float().cpu() for n, p in model.named_parameters() if p.grad is not None}

    expected, gradients = run("cpu")
    found: dict[str, Any] = {}
    for kind in ("bf16", "bf16 residual", "fp32"):
        out, mine = run(kind)
        apart = {n: float((mine[n] - g).norm() / g.norm()) for n, g in gradients.items()}
        worst = max(apart, key=lambda n: apart[n])
        found[kind] = {"output": float((out - expected).norm() / expected.norm()), "worst": worst, "gradient": apart[worst]}
        print("check", kind, found[kind], flush=True)
    return found


def pieces(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of parts of a layer."""
    from torch.nn.attention.varlen import varlen_attn

    from stoker_recipes.icecube import kernels

    batch = Batch(options.events, seed=1)
    packing = make_packing(batch.offsets, len(batch.tokens))
    rows = len(packing.source)
    found: dict[str, Any] = {"rows": rows}

    def note(name: str, run: Callable[..., object], *given: Any, **options: Any) -> None:
        found[name] = round(timed(partial(run, *given, **options)), 4)
        print(f"  {name:<34} {found[name]:8.3f} ms", flush=True)

    def bf16(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)

    qkv, g = bf16(rows, 768), bf16(rows, 256)
    events = packing.offsets, packing.order, 8
    out, levels = kernels.attend(qkv, *events)
    kept = kernels.FORWARD_WARPS, kernels.BACKWARD_WARPS, kernels.UP_TILE, kernels.DOWN_TILE
    for warps in (2, 4):
        kernels.FORWARD_WARPS = warps
        note(f"attention forward, {warps} warps", kernels.attend, qkv, *events)
        for tiles in (1, 2, 3):
            kernels.BACKWARD_WARPS = ((tiles, warps),)
            note(f"attention backward, {tiles} tiles, {warps} warps", kernels.attend_back, qkv, *events, out, levels, g)
    kernels.FORWARD_WARPS, kernels.BACKWARD_WARPS = kept[:2]
    note("attention backward", kernels.attend_back, qkv, *events, out, levels, g)
    up, down, wide = bf16(1024, 256), bf16(256, 1024), bf16(rows, 1024).abs()
    for tile in TILES:
        kernels.UP_TILE = kernels.DOWN_TILE = tile
        note(f"up squared {tile}", kernels.up_squared, g, up)
        note(f"down back {tile}", kernels.down_back, g, down, wide)
    kernels.UP_TILE, kernels.DOWN_TILE = kept[2:]
    q, k, v = (bf16(rows, 8, 32).requires_grad_() for _ in range(3))
    theirs = varlen_attn(q, k, v, packing.offsets, packing.offsets, 129, 129)
    note("varlen_attn forward", varlen_attn, q, k, v, packing.offsets, packing.offsets, 129, 129)
    note("varlen_attn backward", torch.autograd.grad, theirs, (q, k, v), g.view(rows, 8, 32), retain_graph=True)
    one, kv = bf16(options.events, 256), bf16(rows, 512)
    cls, cls_levels = kernels.attend_cls(one, kv, packing.offsets, 8)
    note("CLS attention forward", kernels.attend_cls, one, kv, packing.offsets, 8)
    note("CLS attention backward", kernels.attend_cls_back, one, kv, packing.offsets, 8, cls, cls_levels, one)
    for name, out_width, in_width in (("qkv", 768, 256), ("output", 256, 256), ("up", 1024, 256), ("down", 256, 1024)):
        x, w, y = bf16(rows, in_width), bf16(out_width, in_width), bf16(rows, out_width)
        note(f"{name} forward", torch.mm, x, w.t())
        note(f"{name} input gradient", torch.mm, y, w)
        note(f"{name} weight gradient", torch.mm, y.t(), x, out_dtype=torch.float32)
    scalar = torch.ones((), device=DEVICE)
    for kind in (torch.float32, torch.bfloat16):
        x, x0, name = bf16(rows, 256).to(kind), bf16(rows, 256).to(kind), str(kind)[6:]
        note(f"mix {name}", kernels.mix, x, g, x0, scalar, scalar, dtype=torch.bfloat16)
        note(f"add {name}", kernels.mix, x, g, None, None, None, dtype=torch.bfloat16)
        _, normed, scales = kernels.mix(x, g, x0, scalar, scalar, dtype=torch.bfloat16)
        to_x0 = torch.zeros(rows, 256, device=DEVICE)
        note(f"mix back {name}", kernels.mix_back, x, None, g, normed, scales, x, g, x0, scalar, scalar, to_x0)
        note(f"norm back {name}", kernels.norm_back, x, g, normed, scales)
    note("packing", make_packing, batch.offsets, len(batch.tokens))
    for layers in (6, 24):
        model = IceCubeModel(IceCubeSize(layers=layers), seed=0).to(DEVICE)
        for weight in model.parameters():
            weight.grad = torch.randn_like(weight)
        note(f"optimizer, {layers} layers", make_optimizer(model, 1000).step)
    return found


def make_optimizer(model: IceCubeModel, total: int) -> MuonAdamW:
    return MuonAdamW(model.matrices(), model.others(), warmup=20, total=total)


def make_ours(layers: int, batches: list[Batch], residual: torch.dtype) -> tuple[Callable[[Batch], None], Tensor]:
    """The packed step; on a GPU as a graph that reads batches from static tensors."""
    model = IceCubeModel(IceCubeSize(layers=layers), residual=residual, seed=0).to(DEVICE)
    randomize(model)
    loss_function = VmfLoss(1000).to(DEVICE)
    optimizer = make_optimizer(model, 1000)
    tokens, offsets, target = (torch.empty_like(one) for one in (batches[0].tokens, batches[0].offsets, batches[0].target))
    losses = torch.zeros((), device=DEVICE)

    def load(batch: Batch) -> None:
        for static, one in ((tokens, batch.tokens), (offsets, batch.offsets), (target, batch.target)):
            static.copy_(one)

    def body() -> None:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            raw = model(tokens, offsets)
        loss = loss_function(raw, target)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.copy_(loss.detach())

    load(batches[0])
    if DEVICE == "cpu":
        return (lambda batch: (load(batch), body())[0]), losses
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(stream)
    from stoker._device import sync_debug_mode

    with sync_debug_mode("error"):  # names the line that waits, where a capture would only fail
        body()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()

    def run(batch: Batch) -> None:
        load(batch)
        graph.replay()

    return run, losses


def report(name: str, layers: int, events: int, times: list[float], useful: float) -> dict[str, Any]:
    rates = [events / seconds for seconds in times]
    middle = sorted(rates)[len(rates) // 2]
    flops = TRAIN_FLOPS.get(layers, 0.0)
    answer = {
        "events_per_second": record.spread(rates),
        "milliseconds": round(1e3 * events / middle, 2),
        "mfu_padded": round(middle * flops / PEAK, 4),
        "mfu_useful": round(middle * USEFUL_FLOPS.get(layers, 0.0) / PEAK, 4),
        "useful_tokens": round(useful, 4),
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1) if DEVICE == "cuda" else 0.0,
        "hours_of_10_epochs": round(EVENTS_OF_ALL / middle / 3600, 2),
    }
    print(f"{name} L{layers}: {middle:,.0f} events/s {answer}", flush=True)
    return answer


def measure(run: Callable[..., object], batches: list[Any], *, rounds: int, steps: int) -> list[float]:
    """Seconds per step of some rounds, over the batches in turn."""
    for batch in batches:
        run(*batch)
    times = []
    for _ in range(rounds):
        synchronize()
        begin = time.perf_counter()
        for _, batch in zip(range(steps), cycle(batches), strict=False):
            run(*batch)
        synchronize()
        times.append((time.perf_counter() - begin) / steps)
    return times


def ours(options: argparse.Namespace) -> dict[str, Any]:
    found = {}
    made = [lengths_of(options.events, seed=seed).sum() for seed in range(4)]
    capacity = -(-int(max(made)) // 1024) * 1024
    batches = [Batch(options.events, seed=seed, capacity=capacity) for seed in range(4)]
    useful = sum(batch.num_doms + options.events for batch in batches) / len(batches) / (capacity + options.events)
    for layers in options.layers:
        for residual in (torch.float32, torch.bfloat16):
            name = f"ours L{layers} {str(residual)[6:]} residual"
            try:
                if DEVICE == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                run, losses = make_ours(layers, batches, residual)
                times = measure(run, [(batch,) for batch in batches], rounds=options.rounds, steps=options.steps)
                found[name] = report(name, layers, options.events, times, useful)
                print("  loss", float(losses), flush=True)
            except Exception:
                traceback.print_exc()
    return found


def before(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.before.icecube_padded import make_step

    found = {}
    for layers in options.layers:
        try:
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            batches = [Batch(options.events, seed=seed) for seed in range(2)]
            useful = sum(batch.num_doms + options.events for batch in batches) / (2 * 129 * options.events)
            padded = [batch.padded() for batch in batches]
            micro = 4 if layers > 12 else 1
            begin = time.perf_counter()
            step, _ = make_step(layers, micro_batches=micro, total=1000, compiled=DEVICE == "cuda", device=DEVICE)
            step(*padded[0])
            synchronize()
            print(f"before L{layers}: compiled in {time.perf_counter() - begin:.0f} s", flush=True)
            times = measure(step, padded, rounds=options.rounds, steps=max(1, options.steps // 2))
            found[f"before L{layers}"] = report("before", layers, options.events, times, useful)
        except Exception:
            traceback.print_exc()
    return found


class EpochTimes:
    """A callback that notes when epochs end, prints the rate, and keeps the rates so far in a file, should the run be cut."""

    def __init__(self, events: int, partial_out: Path | None) -> None:
        self.events = events
        self.ends: list[tuple[float, int]] = []
        self._out = partial_out

    def on_epoch_end(self, report: Any) -> None:
        self.ends.append((time.perf_counter(), report.step))
        rates = self.rates()
        seconds = self.ends[-1][0] - self.ends[0][0]
        rate = f"{rates[-1]:,.0f} events/s" if rates else "graphs captured"
        print(f"    step {report.step:,}, {seconds:.0f} s after the first epoch: {rate}, loss {report.loss:.4f}", flush=True)
        if self._out is not None and rates:
            so_far = {"seconds_so_far": round(seconds, 1), "steps": report.step, "events_per_second_by_epoch": record.spread(rates)}
            self._out.write_text(json.dumps(so_far, indent=1) + "\n")

    def rates(self) -> list[float]:
        """Events per second of each epoch but the first, in which graphs are captured."""
        return [(b[1] - a[1]) * self.events / (b[0] - a[0]) for a, b in pairwise(self.ends)]


def make_store(folder: Path, *, files: int, events: int, drift: float = 0.0, seed: int = 0, copies: int = 1) -> Path:
    """A store of generated events, each several times. Files are drawn in parallel and not written: packing is not measured here."""
    begin = time.perf_counter()
    make = partial(generator.make_file, files=files, events=events, seed=seed, drift=drift)
    with multiprocessing.get_context("fork").Pool(min(files, 12)) as pool:
        made = pool.map(make, range(1, files + 1))
    pulses = {name: np.concatenate([columns[name] for columns, _ in made]) for name in ("time", "charge", "sensor_id", "auxiliary")}
    facts = {name: np.concatenate([meta[name] for _, meta in made]) for name in ("event_id", "batch_id", "azimuth", "zenith")}
    lengths = np.concatenate([meta["last_pulse_index"] - meta["first_pulse_index"] + 1 for _, meta in made])
    pulses |= {"time": pulses["time"].astype(np.int32), "charge": pulses["charge"].astype(np.float32)}
    lengths, pulses, facts = np.tile(lengths, copies), *({n: np.tile(one, copies) for n, one in d.items()} for d in (pulses, facts))
    path = folder / f"ice-{files}-{drift:g}-{seed}.stoker"
    stoker.Store.from_arrays(lengths=lengths, **pulses, **facts).save(path)
    rows = [f"{number},{x:.2f},{y:.2f},{z:.2f}" for number, (x, y, z) in enumerate(generator.geometry())]
    (path / "sensor_geometry.csv").write_text("\n".join(["sensor_id,x,y,z", *rows]) + "\n")
    print(f"  {files * events * copies:,} events made in {time.perf_counter() - begin:.0f} s", flush=True)
    return path


def sustained(options: argparse.Namespace) -> dict[str, Any]:
    """Training through the recipe, loading included; epochs over one generated store."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        # Epochs of 256 batches: the first batch of an epoch is waited for, which a real epoch of 31,739 would not show.
        shape = {"files": 2, "events": 64, "copies": 2} if options.small else {"files": 32, "events": 4096, "copies": 8}
        data = make_store(Path(folder), **shape)
        for layers in options.layers:
            size = {2: "tiny", 6: "5m", 12: "10m", 24: "19m"}[layers]
            times = EpochTimes(options.events, Path(f"{options.out}.{size}.part") if options.out else None)
            given = {"size": size, "batch_size": options.events, "residual": options.residual, "device": DEVICE}
            training.train(data, epochs=1, max_seconds=5, **given)  # compiles kernels
            done = training.train(
                data, epochs=2 if options.small else 100_000, max_seconds=options.seconds, callbacks=[times], **given
            )
            rates = times.rates()
            found[size] = {
                "seconds": round(done.result.seconds, 1),
                "steps": done.result.step,
                "events_per_second": round(done.events_per_second),
                "events_per_second_by_epoch": record.spread(rates) if rates else None,
                "waiting": round(done.result.wait, 5),
                "waiting_seconds": round(done.result.wait * done.result.seconds, 3),
                "waiting_seconds_of_the_first_batch": round(done.result.first_wait_seconds, 3),
                "setup": str(done.result.setup),
            }
            print(f"sustained {size}: {found[size]}", flush=True)
            if options.out:  # the next size may be cut
                Path(options.out).write_text(json.dumps({"sustained": found}, indent=1) + "\n")
    return found


def orders(options: argparse.Namespace) -> dict[str, Any]:
    """Mean angular errors in degrees on held-out files."""
    found: dict[str, Any] = {}
    files, events, batch_size = (4, 32, 16) if options.small else (64, 1024, 128) if DEVICE == "cuda" else (20, 200, 32)
    with tempfile.TemporaryDirectory() as folder:
        held = make_store(Path(folder), files=4, events=events, seed=1)
        for drift in (0.0, 1.0):
            data = make_store(Path(folder), files=files, events=events, drift=drift)
            for order in ("blocks", "shuffle", "sequential"):
                errors = []
                for seed in (17, 41, 73)[: 1 if options.small else 3]:
                    done = training.train(
                        data, size="tiny", batch_size=batch_size, epochs=1 if options.small else 3, warmup=100,
                        lr=0.01, side_lr=2e-3, order=order, seed=seed, valid=str(held), device=DEVICE,
                    )  # fmt: skip
                    errors.append(round(done.result.metrics["val_degrees"], 3))
                found[f"{order}, drift {drift:g}"] = errors
                print(f"orders: {order}, drift {drift:g}: {errors}", flush=True)
    return found


PARTS = {
    "sustained": sustained,
    "orders": orders,
    "check": check,
    "pieces": pieces,
    "ours": ours,
    "before": before,
}


def main() -> None:
    """The chosen parts."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="Few events, also without a GPU; writes no result file.")
    parser.add_argument("--part", default="ours,before", help=f"some of {', '.join(PARTS)}; joined by commas")
    parser.add_argument("--layers", default="6,24", help="numbers of layers, joined by commas")
    parser.add_argument("--events", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=180.0, help="of a sustained run")
    parser.add_argument("--residual", default="fp32", help="of a sustained run: fp32 or bf16")
    parser.add_argument("--out", help="Where the result goes. [default: benchmarks/results/gpu_icecube.json]")
    options = parser.parse_args()
    options.layers = [int(word) for word in options.layers.split(",")]
    if options.small:
        options.events, options.rounds, options.steps, options.seconds = 32, 2, 2, 5.0
    answer: dict[str, Any] = {"gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else "none", "torch": torch.__version__}
    begin = time.perf_counter()
    for name in options.part.split(","):
        try:
            answer[name] = PARTS[name](options)
        except Exception:
            traceback.print_exc()
        print(f"part {name} done after {time.perf_counter() - begin:.0f} s", flush=True)
        if options.out:
            Path(options.out).write_text(json.dumps(answer, indent=1) + "\n")
    if not options.small and not options.out:
        record.save("gpu_icecube", QUESTION, answer)


if __name__ == "__main__":
    main()
