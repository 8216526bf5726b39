"""Tokens of DOMs: the 4 + 3 K numbers that a model takes for each DOM, made on the device (`expand`) or padded on the host (`pad`).

    0, 1, 2              x, y, z of the sensor in units of 500 m
    3                    log1p(all pulses of the DOM) / 3 - 1
    4+3i, 5+3i, 6+3i     pulse i: (time - 10,000 ns) / 30,000 ns; log10(max(charge, 1e-6)) / 3; auxiliary - 0.5

Slots without a pulse are 0. About 4 % of the numbers of a token with K = 84 are not 0, so a batch travels to the device as pulses (1.5 KB
per event) and is expanded there. All shapes are those of the batch, and nothing is read back, so the expansion can be part of a
CUDA graph.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from stoker.errors import BadValueError, OptionError, SourceNotFoundError
from stoker.extend import Array, clear_bytes, kernel, prefetch
from stoker.store import read_table
from stoker_recipes.icecube.batches import MAX_DOMS, MAX_PULSES, NUM_SENSORS, EventBatch

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
    if not file.is_file():
        raise SourceNotFoundError(f"{file} is missing; expected the positions of the sensors.", path=file)
    table = read_table(str(file))
    if table.column_names != _COLUMNS:
        raise BadValueError(f"{file}: the columns are {', '.join(table.column_names)}; expected {', '.join(_COLUMNS)}.", path=file)
    for name in _COLUMNS if len(table) else ():
        if not (pa.types.is_integer(kind := table.schema.field(name).type) or pa.types.is_floating(kind)):
            raise BadValueError(
                f"{file}: column {name} holds {kind}; expected the number of a sensor, and metres.", path=file, column=name
            )
    columns = [table.column(name).cast(pa.float64()).to_numpy() for name in _COLUMNS]  # NaN where a value is missing
    numbers, positions = columns[0], np.stack(columns[1:], axis=-1)
    is_sensor = np.isin(numbers, np.arange(NUM_SENSORS)) & np.isfinite(positions).all(axis=1)
    is_sensor[np.setdiff1d(np.arange(len(numbers)), np.unique(numbers, return_index=True)[1])] = False
    if not is_sensor.all():
        row = int(np.argmin(is_sensor))
        line = ",".join(str(value) for value in table.slice(row, 1).to_pylist()[0].values())
        raise BadValueError(
            f"{file}, line {row + 2}: found {line!r}; expected a sensor from 0 to {NUM_SENSORS - 1}, each once, and x, y, z in metres.",
            path=file,
            row=row + 1,
        )
    if len(numbers) < NUM_SENSORS:
        missing = int(np.setdiff1d(np.arange(NUM_SENSORS), numbers)[0])
        raise BadValueError(
            f"{file}: sensor {missing} is missing; expected {NUM_SENSORS:,} sensors, found {len(numbers):,}.", path=file
        )
    sorted_positions: Array = positions[np.argsort(numbers)]
    return sorted_positions


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
        >>> from stoker_recipes.icecube.batches import group_pulses
        >>> pulses = [np.array(values) for values in ([10000, 13000], [1.0, 1000.0], [5, 5], [0, 1], [0, 2])]
        >>> facts = {"target": np.zeros((1, 2)), "event_id": np.zeros(1), "num_pulses": np.array([2])}
        >>> batch = EventBatch.of(group_pulses(*pulses), **facts).tensors()
        >>> expand(batch, torch.zeros(5160, 3), max_pulses=2)[0, 4:].tolist()
        [0.0, 0.0, -0.5, 0.10000000149011612, 1.0, 0.5]
    """
    num_doms, num_pulses, device = len(batch.sensor), len(batch.time), batch.sensor.device
    if geometry.shape != (NUM_SENSORS, 3) or geometry.dtype != torch.float32:
        raise OptionError(
            f"geometry is {geometry.dtype} {tuple(geometry.shape)}; expected float32 ({NUM_SENSORS}, 3).", parameter="geometry"
        )
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


def pad(
    batch: EventBatch,
    geometry: Array,
    *,
    max_pulses: int = MAX_PULSES,
    max_doms: int = MAX_DOMS,
    out: Array | None = None,
    used: Array | None = None,
) -> tuple[Array, Array]:
    """The tokens of a batch as the authors' collator makes them: padded, on the host, in one pass.

    Args:
        batch: Arrays. No event may have more than `max_doms` DOMs.
        geometry: (5160, 3) float32 in units of 500 m.
        max_pulses: K.
        max_doms: Rows per event.
        out: Memory for the tokens, contiguous float32 of their shape, to be filled and returned. Memory that is used again saves page
            faults.
        used: (B, max_doms) int32: how many numbers at the beginning of each row of `out` may differ from 0 (default: all). Only these
            are cleared. It is changed to what this batch uses, for the next batch in the same memory.

    Returns:
        Tokens (B, max_doms, 4 + 3 K) float32, 0 behind the last DOM of an event, and a mask (B, max_doms), True where there is a DOM.

    Example:
        >>> from stoker_recipes.icecube.batches import group_pulses
        >>> pulses = [np.array(values) for values in ([10000, 13000], [1.0, 1000.0], [5, 5], [0, 1], [0, 2])]
        >>> facts = {"target": np.zeros((1, 2)), "event_id": np.zeros(1), "num_pulses": np.array([2])}
        >>> tokens, mask = pad(EventBatch.of(group_pulses(*pulses), **facts), np.zeros((5160, 3)), max_pulses=2, max_doms=3)
        >>> tokens.shape, mask.tolist()
        ((1, 3, 10), [[True, False, False]])
    """
    shape = (len(batch), max_doms, 4 + 3 * max_pulses)
    most = int(np.diff(batch.dom_offsets).max(initial=0))
    if most > max_doms:
        raise OptionError(f"max_doms is {max_doms}, but an event of the batch has {most:,} DOMs.", parameter="max_doms")
    if out is None:
        out, used = np.zeros(shape, dtype=np.float32), np.zeros(shape[:2], dtype=np.int32)
    elif used is None:
        used = np.full(shape[:2], shape[2], dtype=np.int32)
    mask = np.empty(shape[:2], dtype=np.bool_)
    positions = np.ascontiguousarray(geometry, dtype=np.float32)
    _pad(
        batch.dom_offsets, batch.sensor, batch.dom_pulses, batch.pulse_offsets, batch.time, batch.charge, batch.auxiliary, positions,
        max_pulses, out.reshape(-1), used, mask,
    )  # fmt: skip
    return out, mask


_KNOWN = 1024
_SIZES = np.log1p(np.arange(4096, dtype=np.float32)) / np.float32(3) - np.float32(1)
_AHEAD = 8  # rows; memory of a batch is not in the caches


@kernel
def _pad(
    dom_offsets: Array, sensor: Array, dom_pulses: Array, pulse_offsets: Array, time: Array, charge: Array, auxiliary: Array,
    positions: Array, max_pulses: int, out: Array, used: Array, mask: Array,
) -> None:  # fmt: skip
    """Write the numbers of each row, and clear what is behind them up to those of the last batch: 2 % of the memory for K = 84."""
    width, max_doms = 4 + 3 * max_pulses, used.shape[1]
    # Charges have few different values, so most logarithms are known already.
    known, logs = np.full(_KNOWN, np.float32(-1)), np.empty(_KNOWN, np.float32)
    for event in range(len(dom_offsets) - 1):
        first, num_doms = dom_offsets[event], dom_offsets[event + 1] - dom_offsets[event]
        row = event * max_doms
        for slot in range(min(num_doms, _AHEAD)):
            prefetch(out, (row + slot) * width * 4)
        for slot in range(num_doms):
            prefetch(out, (row + slot + _AHEAD) * width * 4)
            dom, place = np.uint64(first + slot), np.uint64((row + slot) * width)
            size, number = dom_pulses[dom], np.uint64(sensor[dom])
            for axis in range(3):
                out[place + np.uint64(axis)] = positions[number, axis]
            out[place + np.uint64(3)] = (
                _SIZES[size] if size < len(_SIZES) else np.float32(math.log1p(np.float64(size))) / np.float32(3) - np.float32(1)
            )
            place += np.uint64(4)
            begin = np.uint64(pulse_offsets[dom])
            count = min(pulse_offsets[dom + np.uint64(1)] - pulse_offsets[dom], max_pulses)
            for pulse in range(begin, begin + np.uint64(count)):
                value = max(charge[pulse], np.float32(1e-6))
                entry = np.uint64(min(value, np.float32(1e6)) * np.float32(40)) & np.uint64(_KNOWN - 1)
                if known[entry] != value:
                    known[entry] = value
                    logs[entry] = np.float32(math.log10(np.float64(value))) / np.float32(3)
                out[place] = (time[pulse] - np.float32(1e4)) / np.float32(3e4)
                out[place + np.uint64(1)] = logs[entry]
                out[place + np.uint64(2)] = np.float32(auxiliary[pulse]) - np.float32(0.5)
                place += np.uint64(3)
            for _ in range(4 + 3 * count, used[event, slot]):
                out[place] = np.float32(0)
                place += np.uint64(1)
            used[event, slot] = 4 + 3 * count
        for slot in range(num_doms, max_doms):
            if used[event, slot]:
                clear_bytes(out, (row + slot) * width * 4, 4 * used[event, slot])
                used[event, slot] = 0
        mask[event, :num_doms] = True
        mask[event, num_doms:] = False
