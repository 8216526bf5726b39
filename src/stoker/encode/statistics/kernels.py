"""Compiled kernels of statistics, imported by `quantiles.compiled` where there are many values.

Most are plain functions of the modules that use them, which also run without numba.
"""

from __future__ import annotations

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array
from stoker.encode.digit_kernels import Block as Block
from stoker.encode.statistics import numbers, quantiles
from stoker.encode.statistics.dates import DAY

write_float_keys = kernel(quantiles.write_float_keys)
sort_keys = kernel(quantiles.sort_keys)
find_runs = kernel(quantiles.find_runs)
ends_to_counts = kernel(quantiles.ends_to_counts)
merge_runs = kernel(quantiles.merge_runs)
settled_down_to = kernel(numbers.settled_down_to)


@kernel
def civil_date(days: int) -> tuple[int, int, int]:
    """Year, month and day of a number of days since 1970. Years are taken to begin in March, so that leap days end them."""
    shifted = days + 719_468
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    march = (5 * of_year + 2) // 153
    month = march + 3 if march < 10 else march - 9
    return year + era * 400 + (1 if month <= 2 else 0), month, of_year - (153 * march + 2) // 5 + 1


@kernel
def widen_part_ranges(micros: Array, lowest: Array, highest: Array, least: Array, most: Array) -> None:
    """Widen least and most by timestamps in ascending order; stops once all parts but the year have their full range."""
    size = len(micros)
    day = micros[0] // DAY - 1
    parts = np.empty(9, dtype=np.int64)
    last = civil_date(micros[size - 1] // DAY)[0]
    for i in range(size):
        today = micros[i] // DAY
        first = 3
        if today != day:
            day, first = today, 0
            parts[0], parts[1], parts[2] = civil_date(day)
        time = micros[i] - day * DAY
        seconds, thousandths = time // 1_000_000, time // 1_000 % 1_000
        parts[3], parts[4], parts[5] = seconds // 3600, seconds // 60 % 60, seconds % 60
        parts[6], parts[7], parts[8] = thousandths // 100, thousandths // 10 % 10, thousandths % 10
        for part in range(first, 9):
            least[part] = min(least[part], parts[part])
            most[part] = max(most[part], parts[part])
        if i % 1024 == 1023:
            settled = True
            for part in range(1, 9):
                settled = settled and least[part] == lowest[part] and most[part] == highest[part]
            if settled:
                break
    most[0] = max(most[0], last)
