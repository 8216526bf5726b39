"""Does a training run of Time-MoE go the same way with the recipe's model as with the authors', from the same weights and batches?

On a CPU, in float32: 200 steps of the 50M shape with two of its twelve layers, on short rows, so that the authors' way has time for
them. `gpu_time_moe --part curve` asks the same of all layers, in bfloat16 on a GPU.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks import record
from benchmarks.time_moe.curve import curve
from benchmarks.time_moe.setting import Setting
from stoker_recipes.time_moe import SIZES

QUESTION = "Do the losses of 200 steps of Time-MoE agree, the recipe's model against the authors'?"


def main() -> None:
    """Both training runs, one after the other."""
    options = record.arguments(QUESTION)
    torch.set_num_threads(1)
    setting = Setting(options.small, "fp32")
    if not options.small:
        setting.use_size(replace(SIZES["50m"], layers=2))
        setting.length = 128
    answer = {"size": "tiny" if options.small else "50m, two layers", **curve(setting)}
    print(answer) if options.small else record.save("bench_time_moe_curve", QUESTION, answer)


if __name__ == "__main__":
    main()
