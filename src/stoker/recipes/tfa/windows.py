"""Windows of rows: from what is computed once a row to what is computed once a window, and the gradient on its way back.

Consecutive windows share all but one row. Axes: s runs of rows, n rows of a run, w windows of a run, t rows of a window, c numbers.
"""

from __future__ import annotations

from typing import Any

import torch


def num_windows(num_rows: int, length: int) -> int:
    """Windows of `length` rows in a run of rows."""
    return num_rows - length + 1


def to_windows(rows_snc: torch.Tensor, length: int) -> torch.Tensor:
    """All windows of each run, one after the other: [s * w, t, c]."""
    if rows_snc.shape[1] == length:
        return rows_snc
    windows: torch.Tensor = _Windows.apply(rows_snc, length)  # type: ignore[no-untyped-call]
    return windows


def to_rows(windows_wtc: torch.Tensor, num_runs: int) -> torch.Tensor:
    """The sum of what all windows say of a row: [s, n, c]. Sums have one order, so that they have the same bits each time."""
    total, length, width = windows_wtc.shape
    windows = total // num_runs
    grid = windows_wtc.reshape(num_runs, windows, length, width)
    wide = torch.float64 if grid.dtype == torch.float64 else torch.float32
    if not grid.is_cuda:
        rows = grid.new_zeros(num_runs, windows + length - 1, width, dtype=wide)
        for place in range(length):
            rows[:, place : place + windows] += grid[:, :, place]
        return rows.to(grid.dtype)
    # The same as a gather, which a compiler makes one kernel of.
    row = torch.arange(windows + length - 1, device=grid.device)[:, None]
    step = torch.arange(length, device=grid.device)[None, :]
    window = row - step
    is_one = (window >= 0) & (window < windows)
    parts = grid[:, window.clamp(0, windows - 1), step.expand_as(window)]
    return torch.where(is_one[None, :, :, None], parts, 0).sum(2, dtype=wide).to(grid.dtype)


class _Windows(torch.autograd.Function):
    """The gradient of overlapping windows, without additions that race for the same row."""

    @staticmethod
    def forward(ctx: Any, rows_snc: torch.Tensor, length: int) -> torch.Tensor:
        ctx.num_runs = rows_snc.shape[0]
        windows = rows_snc.unfold(1, length, 1)  # [s, w, c, t], a view
        return windows.transpose(2, 3).reshape(-1, length, rows_snc.shape[2])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return to_rows(gradient, ctx.num_runs), None
