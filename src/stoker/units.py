"""Units: numbers as people read them."""

from __future__ import annotations


def readable_bytes(num_bytes: float) -> str:
    """1,234,567 as 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} TB"
