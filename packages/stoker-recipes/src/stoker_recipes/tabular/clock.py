"""The dates of subjects while their events are generated, on the device of the model: gaps are chosen by the rhythm of dates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from stoker.extend import Array
from stoker_recipes.tabular.dates import Relative
from stoker_recipes.tabular.rhythm import WEEK, months_of_days, places_of_gaps

CANDIDATES = 16
"""Gaps that are drawn for each event."""


@dataclass(frozen=True, kw_only=True)
class DatedColumn:
    """A column of dates that has a rhythm."""

    column: int
    encoding: Relative
    bounds: Mapping[str, Array]
    """The dates of contexts that first dates depend on, by subject."""

    def part(self, first: int, last: int) -> DatedColumn:
        """The same of some subjects."""
        return replace(self, bounds={name: dates[first:last] for name, dates in self.bounds.items()})


class Clock:
    """The gaps of a column, and what follows from its dates, on a device."""

    def __init__(self, dated: DatedColumn, place: int, device: torch.device) -> None:
        self.dated, self.place, self.device = dated, place, device
        encoding = dated.encoding
        assert encoding.rhythm is not None
        self.rhythm, gap = encoding.rhythm, encoding.gap
        self._lows, self._highs = (torch.tensor(ends, dtype=torch.int64, device=device) for ends in (gap.lows, gap.highs))
        self._step, self._has_null = gap.step, int(gap.has_null)
        self._lifts = [
            torch.tensor(lifts or np.ones(size), dtype=torch.float64, device=device)
            for lifts, size in ((self.rhythm.weekdays, (WEEK, 2 * WEEK)), (self.rhythm.months, (12, 13)))
        ]
        self._months = torch.tensor(months_of_days(), device=device)
        counts = np.array(gap.counts or [1] * len(gap.lows))
        bins = np.array(gap.bins or range(len(gap.lows)))
        order = np.lexsort((np.array(gap.ranks), bins)) if gap.ranks else np.argsort(bins, kind="stable")
        sizes = np.bincount(bins)
        total, last = np.cumsum(counts[order]), np.cumsum(sizes) - 1
        tables = {
            "order": order,
            "sizes": sizes,
            "firsts": np.cumsum(sizes) - sizes,
            "last": last,
            "total": total,
            "counts": counts[order],
        }
        self._tables = {name: torch.tensor(table, device=device) for name, table in tables.items()}
        self._before = torch.tensor(np.append(0, total[last[:-1]]), device=device)
        self._has_ranks, self._is_drawn = bool(gap.ranks), bool(gap.counts)

    def gaps(self, bins: torch.Tensor, fine: torch.Tensor | None, uniform: torch.Tensor) -> torch.Tensor:
        """Gaps of classes, as `Numeric.numbers` has them."""
        coarse, rest = (bins - self._has_null).clamp(min=0), uniform.to(torch.float64)
        tables = self._tables
        if self._is_drawn:
            total = tables["total"]
            place = self._before[coarse] + rest * (total[tables["last"][coarse]] - self._before[coarse])
            number = torch.minimum(torch.searchsorted(total.to(torch.float64), place, right=True), tables["last"][coarse])
            rest = ((place - total[number] + tables["counts"][number]) / tables["counts"][number]).clamp(0.0, 1.0 - 2.0**-53)
        else:
            number = tables["firsts"][coarse]
            if self._has_ranks and fine is not None:
                number = number + torch.minimum(fine, tables["sizes"][coarse] - 1)
        interval = tables["order"][number]
        lows, highs = self._lows[interval], self._highs[interval]
        steps = (highs - lows) // self._step
        return torch.minimum(lows + self._step * torch.floor(rest * (steps + 1.0)).to(torch.int64), highs)

    def chances(self, time: torch.Tensor, gaps: torch.Tensor) -> torch.Tensor:
        """How much likelier gaps (subjects, candidates) are after these times than after others."""
        before, after = time[:, None] // self.rhythm.per_day, (time[:, None] + gaps) // self.rhythm.per_day
        by_week, by_month = places_of_gaps(self._months, before, after)
        return self._lifts[0][by_week] * self._lifts[1][by_month]

    @property
    def count_numbers(self) -> int:
        """Random numbers that it takes for an event."""
        return 2 * CANDIDATES + 1

    @property
    def first_number(self) -> int:
        """Where these are among those of all clocks."""
        return self.place * self.count_numbers

    def first(self, codes: torch.Tensor, uniform: torch.Tensor, who: torch.Tensor) -> torch.Tensor:
        """First dates, of the codes of the column; the only part that the host computes."""
        subjects = who.cpu().numpy()
        bounds = {name: dates[subjects] for name, dates in self.dated.bounds.items()}
        begins = self.dated.encoding.first_dates(codes.cpu().numpy(), uniform.cpu().numpy().astype(np.float64), bounds)
        return torch.from_numpy(begins.astype(np.int64)).to(self.device)
