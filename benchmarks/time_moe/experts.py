"""Experts: the grouped matmuls, by torch's own kernel and by ours with each choice of tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.time_moe.setting import DEVICE, Setting
from benchmarks.time_moe.variants import best_of, compare, timed


def experts(setting: Setting) -> dict[str, Any]:
    """The products of the experts of one layer; the best tiles are used from here on."""
    from stoker_recipes.time_moe import kernels as kernels
    from stoker_recipes.time_moe.layers import route

    found: dict[str, Any] = {}
    size, positions = setting.size, setting.batch * setting.length
    liking = torch.randn(positions, size.experts, device=DEVICE) + torch.linspace(0, 3, size.experts, device=DEVICE)
    chosen = liking.topk(size.top_k).indices  # uneven, as it is early in a training run
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
            setattr(kernels, constant + suffix, kernels.Tile(*(int(word) for word in best.strip("()").split(","))))
            print(precision, kind, "best", best, flush=True)
    torch.set_float32_matmul_precision("highest")
    return found
