"""How fast is a step of Time-MoE 50M on a GPU, the authors' way and the recipe's, and are the losses the same?

Needs a GPU (without one, `--small` runs all parts with a tiny model, to see that they run). Data lies on the device, so that
nothing but the model is measured; the recipe's steps are those of the trainer, the feed included. Parts can be chosen by `--part`:

    step        milliseconds per step, memory, useful points per second, share of the peak: both ways, 8 x 2048 and 32 x 2048
    curve       losses of 200 steps from the same weights on the same batches
    short       targets per second on short series, the loaders of both ways included
    recipe      milliseconds per step of the recipe alone, 8 x 2048
    attention   one attention, forward and backward, by each kernel that torch has, and by ours with each choice of blocks
    experts     the grouped matmuls, by torch's own kernel and by ours with each choice of tiles
    whole       a step with the model compiled as a whole instead of layer by layer
"""

from __future__ import annotations

import argparse
import time

import torch

from benchmarks import record
from benchmarks.time_moe.attention import attention
from benchmarks.time_moe.curve import curve
from benchmarks.time_moe.experts import experts
from benchmarks.time_moe.setting import ON_GPU, PRECISIONS, Setting
from benchmarks.time_moe.short import short
from benchmarks.time_moe.step import recipe, step, whole

QUESTION = "How fast is a step of Time-MoE 50M on a GPU, the authors' way and the recipe's, and are the losses the same?"
PARTS = {
    "step": step,
    "curve": curve,
    "short": short,
    "recipe": recipe,
    "attention": attention,
    "experts": experts,
    "whole": whole,
}
KEPT = {"step": "gpu_time_moe", "curve": "gpu_time_moe_curve", "short": "gpu_time_moe_short"}
"""Parts that have a result file each."""


def main() -> None:
    """The chosen parts."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--part", default="step,curve", help=f"some of {', '.join(PARTS)}; joined by commas")
    parser.add_argument("--precision", default=None, help="whole: bf16 or tf32")
    options = parser.parse_args()
    setting = Setting(options.small or not ON_GPU, options.precision or PRECISIONS[0])
    begin = time.perf_counter()
    for name in options.part.split(","):
        found = PARTS[name](setting)
        print(f"part {name} done after {time.perf_counter() - begin:.0f} s", flush=True)
        if not options.small and ON_GPU and name in KEPT:
            record.save(KEPT[name], QUESTION, {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, name: found})


if __name__ == "__main__":
    main()
