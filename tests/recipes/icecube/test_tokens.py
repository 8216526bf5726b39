"""Tokens: equal bit for bit to the plain rule and to the authors' collator, with static shapes and without reading back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.recipes.icecube.plain_events import collate, random_pulses

from stoker.errors import SourceError
from stoker_recipes.icecube.batches import EventBatch, group_pulses, pad_to
from stoker_recipes.icecube.tokens import expand, pad, read_geometry, scale_geometry


def batch_of(pulses: tuple[np.ndarray, ...], offsets: np.ndarray, **limits: int) -> EventBatch:
    events = len(offsets) - 1
    facts = {"target": np.zeros((events, 2)), "event_id": np.arange(events), "num_pulses": np.diff(offsets)}
    return EventBatch.of(group_pulses(*pulses, offsets, **limits), **facts)


@pytest.fixture
def geometry(rng: np.random.Generator) -> torch.Tensor:
    return scale_geometry(rng.uniform(-500, 500, (5160, 3)))


@pytest.mark.promise("P29")
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("num_sensors", "max_pulses", "max_doms"), [(5160, 84, 128), (30, 84, 128), (5160, 3, 20), (30, 3, 20)])
def test_tokens_equal_the_collator_bit_for_bit(
    rng: np.random.Generator, geometry: torch.Tensor, ties: bool, num_sensors: int, max_pulses: int, max_doms: int
) -> None:
    pulses, offsets = random_pulses(rng, [30, 500, 12, 900, 1, 64, 200] * 4, num_sensors=num_sensors, ties=ties)
    padded, mask = collate(pulses, offsets, geometry, max_pulses=max_pulses, max_doms=max_doms)
    batch = batch_of(pulses, offsets, max_pulses=max_pulses, max_doms=max_doms)
    assert mask.sum(1).tolist() == np.diff(batch.dom_offsets).tolist()
    tokens = expand(batch.tensors(), geometry, max_pulses=max_pulses)
    assert torch.equal(tokens, padded[mask])
    assert torch.equal(expand(batch.tensors(), geometry, max_pulses=max_pulses, dtype=torch.bfloat16), tokens.bfloat16())
    room = np.full(padded.shape, np.nan, dtype=np.float32)
    again, found = pad(batch, geometry.numpy(), max_pulses=max_pulses, max_doms=max_doms, out=room)
    assert again is room
    assert np.array_equal(found, mask)
    # The logarithm of the kernel is rounded correctly; that of torch may differ in the last bit.
    np.testing.assert_allclose(again, padded, rtol=2.4e-7)


def test_rows_behind_the_last_dom_are_zero(rng: np.random.Generator, geometry: torch.Tensor) -> None:
    pulses, offsets = random_pulses(rng, [30, 0, 500])
    batch = batch_of(pulses, offsets)
    tokens = expand(batch.tensors(), geometry)
    padded = expand(pad_to(batch, doms=1000, pulses=2000).tensors(), geometry)
    assert padded.shape == (1000, 256)
    assert torch.equal(padded[: len(tokens)], tokens)
    assert not padded[len(tokens) :].any()


def write_geometry(folder: Path, lines: list[str], head: str = "sensor_id,x,y,z") -> Path:
    (folder / "sensor_geometry.csv").write_text("\n".join([head, *lines, ""]))
    return folder


def test_geometry_is_read_in_metres(tmp_path: Path) -> None:
    write_geometry(tmp_path, [f"{number},-256.14,{number},1" for number in range(5160)])
    positions = read_geometry(tmp_path)
    assert positions[7].tolist() == [-256.14, 7, 1]
    assert scale_geometry(positions)[7].tolist() == [np.float32(-256.14 / 500), np.float32(7 / 500), np.float32(1 / 500)]


def test_geometry_may_be_in_any_order_and_quoted(tmp_path: Path, rng: np.random.Generator) -> None:
    positions = rng.uniform(-500, 500, (5160, 3))
    lines = [f"{number},{','.join(map(repr, positions[number].tolist()))}" for number in rng.permutation(5160)]
    assert np.array_equal(read_geometry(write_geometry(tmp_path, lines)), positions)
    quoted = [",".join(f'"{one}"' for one in line.split(",")) for line in lines]
    assert np.array_equal(read_geometry(write_geometry(tmp_path, quoted)), positions)
    file = write_geometry(tmp_path, lines) / "sensor_geometry.csv"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert np.array_equal(read_geometry(tmp_path), positions)
    file.write_bytes(b"\xff\xfe" + file.read_bytes())
    with pytest.raises(SourceError, match=r"sensor_geometry.csv"):
        read_geometry(tmp_path)


@pytest.mark.parametrize(
    ("lines", "head", "message"),
    [
        (["0,1,2"], "sensor_id,x,y,z", "row 1 of .*sensor_geometry.csv has 3 fields, but 4 are expected"),
        (["0,1,2,3", "0,1,2,3"], "sensor_id,x,y,z", "line 3: found '0,1,2,3'"),
        (["9,1,x,3"], "sensor_id,x,y,z", "column y holds string; expected the number of a sensor"),
        (["9,1,nan,3"], "sensor_id,x,y,z", "column y holds null"),
        (["5160,1,2,3"], "sensor_id,x,y,z", "line 2"),
        (["0,1,2,3"], "sensor_id,x,y,z", "sensor 1 is missing; expected 5,160 sensors, found 1"),
        ([], "sensor,x,y,z", "the columns are sensor, x, y, z; expected sensor_id, x, y, z"),
        ([], "sensor_id,x,y,z", "sensor 0 is missing; expected 5,160 sensors, found 0"),
    ],
)
def test_a_geometry_that_is_not_one_is_refused(tmp_path: Path, lines: list[str], head: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_geometry(write_geometry(tmp_path, lines, head))


@pytest.mark.promise("P29", control=True)
def test_negative_control_another_count_of_pulses_is_found(rng: np.random.Generator, geometry: torch.Tensor) -> None:
    """A token counts all pulses of its DOM; those that are kept would be another number."""
    pulses, offsets = random_pulses(rng, [900], num_sensors=5)
    batch = batch_of(pulses, offsets)
    kept = replace(batch, dom_pulses=np.diff(batch.pulse_offsets))
    padded, mask = collate(pulses, offsets, geometry, max_pulses=84, max_doms=128)
    assert torch.equal(expand(batch.tensors(), geometry), padded[mask])
    assert not torch.equal(expand(kept.tensors(), geometry), padded[mask])
