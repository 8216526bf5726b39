"""Does this optimisation do anything? The options of the authors' training script, and what each does here.

Their script swallows errors, so a flag that fails looks like one that works. Here each flag that is given is answered: it acts, with
what it changes, or it is ignored, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from stoker.errors import OptionError
from stoker.recipes.timehut.settings import EncoderSettings

FLAGS = {
    "amp": "Mixed precision.",
    "compile": "torch.compile.",
    "channels-last": "Memory format of convolutions.",
    "memory-mode": "Clear caches, collect garbage often.",
    "dynamic-batch": "Batch size from the number of series.",
    "cudnn-benchmark": "Let cuDNN choose its kernels by measuring.",
    "tf32": "TensorFloat-32 matmuls.",
    "pin-memory": "Pinned memory and persistent loader workers.",
    "skip-search": "No search of hyperparameters.",
}


@dataclass(frozen=True, kw_only=True)
class FlagEffect:
    """What a flag did."""

    flag: str
    acts: bool
    reason: str


def apply_flags(
    flags: Collection[str], settings: EncoderSettings, *, num_series: int, device: torch.device
) -> tuple[EncoderSettings, list[FlagEffect]]:
    """The settings with what the flags change, and an answer for each flag.

    Args:
        flags: Names of `FLAGS`.
        settings: The settings without them.
        num_series: Training series.
        device: Where the encoder is trained.

    Raises:
        OptionError: An unknown flag.

    Example:
        >>> from stoker.recipes.timehut import make_settings
        >>> changed, found = apply_flags(["dynamic-batch", "amp"], make_settings(), num_series=20, device=torch.device("cpu"))
        >>> changed.batch_size, [(one.flag, one.acts) for one in found]
        (20, [('dynamic-batch', True), ('amp', False)])
    """
    is_gpu, effects = device.type == "cuda", []
    ignored = {
        "amp": "the loss needs float32 (acos and softmax lose the digits that count), and "
        + ("matmuls use TF32 already." if is_gpu else "on a CPU matmuls of bfloat16 this small are slower."),
        "compile": "an update is one CUDA graph of fused kernels already."
        if is_gpu
        else "compiling takes longer than a run of this size.",
        "channels-last": "it is a format of images (4 dimensions); here channels are last anyway, and convolutions are matmuls.",
        "memory-mode": "the memory of an update is allocated once; emptying caches would only allocate it again.",
        "cudnn-benchmark": "no cuDNN kernel is used: convolutions are matmuls.",
        "pin-memory": "there is no loader: all series and crops are on the device before the first update.",
        "skip-search": "training never searches; the defaults are known-good. Searching is `stoker tune search timehut`.",
    }
    for flag in flags:
        if flag not in FLAGS:
            raise OptionError(f"flags has {flag!r}; expected some of {', '.join(FLAGS)}.")
        if flag == "dynamic-batch":
            # The authors' rule: 4 times as many for fewer than 500 series, a quarter for more than 5,000; at most all series.
            factor = 4 if num_series < 500 else 0.25 if num_series > 5000 else 1
            size = max(1, min(num_series, int(settings.batch_size * factor)))
            acts = size != settings.batch_size
            reason = f"batch size {settings.batch_size} -> {size}; this changes the results, and the number of updates of an epoch."
            effects.append(FlagEffect(flag=flag, acts=acts, reason=reason if acts else f"the batch size stays {size}."))
            settings = replace(settings, batch_size=size)
        elif flag == "tf32":
            reason = "matmuls use TF32, which is the default on a GPU." if is_gpu else "a CPU has no TF32."
            effects.append(FlagEffect(flag=flag, acts=is_gpu, reason=reason))
        else:
            effects.append(FlagEffect(flag=flag, acts=False, reason=ignored[flag]))
    return settings, effects
