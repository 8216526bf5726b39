"""Settings of a tabular run, validated."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from stoker.errors import OptionError
from stoker_recipes.tabular.layout import SIZES, Size


@dataclass(frozen=True, kw_only=True)
class TabularSettings:
    """All settings of a model and its training."""

    size: Size = "m"
    """Widths of the model: "s", "m" or "l"."""
    epochs: int = 100
    """Passes over the training subjects, at most."""
    batch_size: int | None = None
    """Subjects per update. None: a power of two, about 1/64 of the subjects, from 8 to 2,048, less for large models."""
    lr: float | None = None
    """Learning rate. None: 0.004 times the root of batch_size / 32, at most 0.008."""
    patience: int = 5
    """Stop after this number of epochs in a row without a better validation loss."""
    max_seconds: float | None = None
    """Stop training after this time."""
    max_grad_norm: float | None = None
    """Clip the gradient to this norm; with `noise` that of each subject, by default to 1."""
    noise: float | None = None
    """Train with differential privacy: noise of this multiple of the norm is added to the sum of gradients. 1.5 is usual."""
    max_epsilon: float = 10.0
    """With `noise`: the privacy that training may cost."""
    delta: float = 1e-5
    """With `noise`: the probability that the promise of `max_epsilon` does not cover."""
    window: int = 100
    """Events of a sequence that an update sees, at most."""
    valid_share: float = 0.2
    """Share of subjects that training is validated with."""
    protect: bool = True
    """Keep only values that several subjects have."""
    seed: int = 0
    """Seed of all random choices."""

    def __post_init__(self) -> None:
        limits: dict[str, tuple[float, float]] = {
            "epochs": (1, 1e6), "batch_size": (1, 2**24), "lr": (1e-12, 10), "patience": (1, 1e6), "max_seconds": (1e-3, 1e9),
            "max_grad_norm": (1e-12, 1e12), "noise": (0.1, 1e6), "max_epsilon": (1e-6, 1e6), "delta": (1e-12, 0.1),
            "window": (1, 2**24), "valid_share": (1e-6, 0.9), "seed": (-(2**63), 2**63),
        }  # fmt: skip
        if self.size not in SIZES:
            raise OptionError(f"size is {self.size!r}; expected one of {', '.join(SIZES)}.")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in limits or value is None:
                continue
            low, high = limits[field.name]
            is_whole = field.name in ("epochs", "batch_size", "patience", "window", "seed")
            if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float) or not low <= value <= high:
                kind = "an integer" if is_whole else "a number"
                between = f"{int(low):,} to {int(high):,}" if is_whole else f"{low:g} to {high:g}"
                raise OptionError(f"{field.name} is {value!r}; expected {kind} from {between}.")


def make_settings(**options: Any) -> TabularSettings:
    """Settings of options; an unknown one is an error."""
    known = [field.name for field in fields(TabularSettings)]
    for name in options:
        if name not in known:
            raise OptionError(f"there is no option {name!r}; expected one of {', '.join(known)}.")
    return TabularSettings(**options)
