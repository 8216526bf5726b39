"""Models of the recipe by name, as a configuration has them.

tfa         the authors' model, for parity; sizes of the original: 404,737 weights
tfa-small   the smaller one that its report proposes: 155,041 weights with 32 rows
banded      one token a label: causal attention over a long run of rows
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.errors import OptionError
from stoker.recipes.tfa.banded import Banded
from stoker.recipes.tfa.model import Tfa
from stoker.recipes.tfa.stationary import Levels

Numbers = torch.Tensor | npt.NDArray[np.floating[Any]]
TfaModel = Tfa | Banded

SMALL = {"width": 96, "heads": 4, "layers": 2, "hidden": 192}
_SIZES = {"width", "heads", "layers", "hidden"}
KNOWN = {"tfa": _SIZES | {"positions"}, "tfa-small": _SIZES | {"positions"}, "banded": _SIZES}


def build_model(
    name: str, *, num_features: int, mean: Numbers, std: Numbers, length: int, levels: Levels | None = None, **sizes: Any
) -> TfaModel:
    """A model of raw features [.., rows, features]; `mean` and `std` are those of the training rows (of ratios, with `levels`).

    `length` is how many rows a window has; for "banded" how many rows back a layer looks. `sizes` are the keyword arguments of
    `Tfa` or `Banded`: width, heads, layers, hidden, positions.
    """
    if len(mean) != num_features:
        raise OptionError(f"mean has {len(mean)} numbers, but there are {num_features} features.")
    unknown = sorted(set(sizes) - KNOWN.get(name, set(sizes)))
    if unknown:
        raise OptionError(f"model {name} has no {', '.join(unknown)}; it takes {', '.join(sorted(KNOWN[name]))}.")
    given: dict[str, Any] = {
        "mean": torch.as_tensor(mean, dtype=torch.float32),
        "std": torch.as_tensor(std, dtype=torch.float32),
        "levels": levels,
    }
    if name == "banded":
        return Banded(**given, window=length, **sizes)
    if name in ("tfa", "tfa-small"):
        return Tfa(**given, length=length, **((SMALL if name == "tfa-small" else {}) | sizes))
    raise OptionError(f"model is {name!r}; expected tfa, tfa-small or banded.")
