"""Tokens of DOMs: the 4 + 3 K numbers that a model takes for each DOM, made on the device from a ragged batch.

    0, 1, 2              x, y, z of the sensor in units of 500 m
    3                    log1p(all pulses of the DOM) / 3 - 1
    4+3i, 5+3i, 6+3i     pulse i: (time - 10,000 ns) / 30,000 ns; log10(max(charge, 1e-6)) / 3; auxiliary - 0.5

Slots without a pulse are 0. About 4 % of the numbers of a token with K = 84 are not 0, so a batch travels to the device as pulses (1.5 KB
per event) and is expanded there. All shapes are those of the batch, and nothing is read back, so the expansion can be part of a
CUDA graph.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import torch

from stoker._types import Array
from stoker.errors import BadValueError, OptionError
from stoker.recipes.icecube.batches import MAX_PULSES, NUM_SENSORS, EventBatch

POSITION_UNIT = 500.0
"""Metres."""
_COLUMNS = ["sensor_id", "x", "y", "z"]


def read_geometry(path: str | os.PathLike[str]) -> Array:
    """The positions of all sensors, in metres, from `sensor_geometry.csv`.

    Args:
        path: A file with the columns `sensor_id,x,y,z`, or a folder with a `sensor_geometry.csv`.

    Returns:
        (5160, 3) float64.

    Raises:
        BadValueError: A line is not a sensor with a position, or a sensor is missing or there twice.
    """
    file = Path(path)
    file = file / "sensor_geometry.csv" if file.is_dir() else file
    positions = np.full((NUM_SENSORS, 3), np.nan)
    with file.open(newline="", encoding="utf-8") as lines:
        rows = csv.reader(lines)
        found = next(rows, [])
        if found != _COLUMNS:
            raise BadValueError(f"{file}: the columns are {', '.join(found) or 'missing'}; expected {', '.join(_COLUMNS)}.")
        for line, row in enumerate(rows, start=2):
            try:
                number, *place = int(row[0]), *map(float, row[1:])
                is_new = (
                    0 <= number < NUM_SENSORS and len(place) == 3 and np.isfinite(place).all() and np.isnan(positions[number, 0])
                )
            except (ValueError, IndexError):
                is_new = False
            if not is_new:
                raise BadValueError(
                    f"{file}, line {line}: found {','.join(row)!r}; expected a sensor from 0 to {NUM_SENSORS - 1}, each once, and x, y, z "
                    f"in metres."
                )
            positions[number] = place
    missing = np.flatnonzero(np.isnan(positions[:, 0]))
    if len(missing):
        raise BadValueError(
            f"{file}: sensor {missing[0]} is missing; expected {NUM_SENSORS:,} sensors, found {NUM_SENSORS - len(missing):,}."
        )
    return positions


def scale_geometry(positions: Array) -> torch.Tensor:
    """Positions in metres as tokens have them: (5160, 3) float32 in units of 500 m."""
    return torch.from_numpy((np.asarray(positions, dtype=np.float64) / POSITION_UNIT).astype(np.float32))


def expand(
    batch: EventBatch, geometry: torch.Tensor, *, max_pulses: int = MAX_PULSES, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The tokens of all DOMs of a batch, on its device.

    Args:
        batch: Tensors. No DOM may have more than `max_pulses` kept pulses.
        geometry: (5160, 3) float32 in units of 500 m, on the same device; see `scale_geometry`.
        max_pulses: K.
        dtype: Values are calculated in float32 and rounded to this type at the end.

    Returns:
        (D, 4 + 3 K); rows behind the last DOM of the batch are 0.

    Example:
        >>> import numpy as np
        >>> from stoker.recipes.icecube.batches import group_pulses
        >>> pulses = [np.array(values) for values in ([10000, 13000], [1.0, 1000.0], [5, 5], [0, 1], [0, 2])]
        >>> facts = {"target": np.zeros((1, 2)), "event_id": np.zeros(1), "num_pulses": np.array([2])}
        >>> batch = EventBatch.of(group_pulses(*pulses), **facts).tensors()
        >>> expand(batch, torch.zeros(5160, 3), max_pulses=2)[0, 4:].tolist()
        [0.0, 0.0, -0.5, 0.10000000149011612, 1.0, 0.5]
    """
    num_doms, num_pulses, device = len(batch.sensor), len(batch.time), batch.sensor.device
    if geometry.shape != (NUM_SENSORS, 3) or geometry.dtype != torch.float32:
        raise OptionError(f"geometry is {geometry.dtype} {tuple(geometry.shape)}; expected float32 ({NUM_SENSORS}, 3).")
    # One row more takes the pulses and DOMs that belong to none, so that no index depends on the true counts.
    tokens = torch.zeros(num_doms + 1, 4 + 3 * max_pulses, dtype=dtype, device=device)
    is_dom = (torch.arange(num_doms, device=device) < batch.dom_offsets[-1]).unsqueeze(1)
    size = torch.log1p(batch.dom_pulses.float()) / 3.0 - 1.0
    head = torch.cat([geometry.index_select(0, batch.sensor.int()), size.unsqueeze(1)], dim=1)
    tokens[:num_doms, :4] = torch.where(is_dom, head, 0.0)

    pulse = torch.arange(num_pulses, dtype=torch.int32, device=device)
    dom = torch.searchsorted(batch.pulse_offsets[1:], pulse, right=True, out_int32=True)  # D behind the last pulse
    place = torch.where(dom < num_doms, pulse - batch.pulse_offsets[dom.clamp(max=num_doms - 1)], 0)
    values = torch.stack(
        [(batch.time - 1e4) / 3e4, torch.log10(batch.charge.clamp(min=1e-6)) / 3.0, batch.auxiliary.float() - 0.5], dim=1
    )
    tokens[:, 4:].view(num_doms + 1, max_pulses, 3)[dom.long(), place.long()] = values.to(dtype)
    return tokens[:num_doms]
