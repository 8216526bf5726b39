"""Attention: by each kernel that torch has, and by ours with each choice of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.time_moe.setting import DEVICE, Setting
from benchmarks.time_moe.variants import best_of, compare, timed


def attention(setting: Setting) -> dict[str, Any]:
    """One attention at 8 x 2048, by each kernel; the best blocks of our own are used from here on."""
    from stoker_recipes.time_moe import kernels as kernels
    from stoker_recipes.time_moe.layers import runs_of

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
        variants = {backend: by(getattr(SDPBackend, backend)) for backend in backends}
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
            ("backward by queries", "TO_QUERIES", {str(query): backward(to_queries=kernels.Blocks(*query)) for query in queries}),
            ("backward by keys", "TO_KEYS", {str(key): backward(to_keys=kernels.Blocks(*key)) for key in keys}),
        ):
            times = compare(f"{name}: {title}", variants)
            best = best_of(times)
            setattr(kernels, constant + suffix, kernels.Blocks(*(int(word) for word in best.strip("()").split(","))))
            found[name][title] = {"best": best, **times}
        found[name]["ours"] = [timed(forward(getattr(kernels, "FORWARD" + suffix))), timed(backward())]
        found[name]["ours, packed (300 each)"] = [
            timed(lambda q=q, k=k, v=v: kernels.forward(q, k, v, runs)),
            timed(lambda given=(q, k, v, out, levels, gradient): kernels.backward(*given, runs)),
        ]
        print(name, "ours, forward and backward", found[name]["ours"], "packed", found[name]["ours, packed (300 each)"], flush=True)
    torch.set_float32_matmul_precision("highest")
    return found
