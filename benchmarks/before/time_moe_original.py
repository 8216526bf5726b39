"""Time-MoE's model as its authors train it. It is part of the package, as `stoker bench time-moe` measures it too."""

from __future__ import annotations

from stoker.recipes.time_moe.before.model import OriginalTimeMoe

__all__ = ["OriginalTimeMoe"]
