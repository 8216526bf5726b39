"""The profile: kernels of a step of the recipe, by time."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity

from benchmarks.time_moe.setting import DEVICE, ON_GPU, Setting, synchronize
from benchmarks.time_moe.ways import RECIPE, loss_of


def profile(setting: Setting) -> dict[str, Any]:
    """Kernels of three steps without a graph, by time."""
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
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])]) as seen:
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
