"""SDPA: attention that does not give its weights away, and so need not store them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from stoker.diagnose.tries.fix import Fix


class Attention(Fix):
    """`nn.MultiheadAttention` with `need_weights=False`: scaled_dot_product_attention takes its place."""

    nothing = "no nn.MultiheadAttention of the program asks for its weights"

    def install(self) -> None:
        """Change every call of the module."""
        original = torch.nn.MultiheadAttention.forward
        signature = inspect.signature(original)

        @functools.wraps(original)
        def without_weights(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            if given.get("need_weights", True):
                self.used = True
                given["need_weights"] = False
            return original(**given)

        self.replace(torch.nn.MultiheadAttention, "forward", without_weights)
