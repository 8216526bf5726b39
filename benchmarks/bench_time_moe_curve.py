"""Does a training of Time-MoE go the same way with the recipe's model as with the authors', from the same weights and batches?

On a CPU, in float32: 200 steps of the 50M shape (12 layers, 8 experts) on short rows, so that the authors' way has time for them.
`gpu_time_moe --part curve` asks the same in bfloat16 on a GPU.
"""

from __future__ import annotations

from benchmarks import record
from benchmarks.gpu_time_moe import Setting, curve
from stoker.recipes.time_moe import SIZES

QUESTION = "Do the losses of 200 steps of Time-MoE agree, the recipe's model against the authors'?"


def main() -> None:
    """Both trainings, one after the other."""
    options = record.arguments(QUESTION)
    setting = Setting(options.small, "fp32")
    if not options.small:
        setting = FullSetting()
    answer = {"size": "tiny" if options.small else "50m", **curve(setting)}
    print(answer) if options.small else record.save("bench_time_moe_curve", QUESTION, answer)


class FullSetting(Setting):
    """The 50M shape."""

    def __init__(self) -> None:
        super().__init__(False, "fp32")
        self.use_size(SIZES["50m"])
        self.length = 64
        self.curve_batch = 1


if __name__ == "__main__":
    main()
