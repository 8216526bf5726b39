"""How the TFA trainer trains today. It is part of the package, as `stoker bench tfa` measures it too."""

from __future__ import annotations

from stoker.recipes.tfa.before import Tfa, train

__all__ = ["Tfa", "train"]
