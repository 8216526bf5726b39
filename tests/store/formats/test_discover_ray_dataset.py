"""A `ray.data.Dataset` as a source. `make test-scale` installs Ray; without it a stand-in shows what is asked of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import stoker
from stoker.errors import OptionError, SourceEmptyError

pytestmark = pytest.mark.scale


class Dataset:
    """What a data set offers: blocks by reference, in the order of the rows only if that is asked for."""

    __module__ = "ray.data.dataset"

    def __init__(self, *blocks: pa.Table) -> None:
        self._blocks = list(blocks)
        self.context = SimpleNamespace(execution_options=SimpleNamespace(preserve_order=False))

    def materialize(self) -> Dataset:
        return self if self.context.execution_options.preserve_order else Dataset(*self._blocks[::-1])

    def to_arrow_refs(self) -> list[int]:
        return list(range(len(self._blocks)))


def test_blocks_are_read_in_the_order_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [pa.table({"k": ["a", "b"] * 50, "x": np.arange(100) + 100 * i, "kind": ["u", f"v{i}"] * 50}) for i in range(4)]
    given = Dataset(*blocks)
    module = ModuleType("ray")
    module.get = lambda ref: blocks[ref]  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "ray", module)
    store = stoker.pack(given, tmp_path / "a.stoker", series="k")
    assert not given.context.execution_options.preserve_order
    expected = stoker.pack(pa.concat_tables(blocks), tmp_path / "b.stoker", series="k")
    for name in ("x", "kind"):
        assert np.array_equal(store.column(name), expected.column(name))
    assert store.texts("kind") == expected.texts("kind")
    with pytest.raises(SourceEmptyError, match=r"the ray\.data\.Dataset has no rows"):
        stoker.pack(Dataset(), tmp_path / "c.stoker")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    module = pytest.importorskip("ray", reason="make test-scale installs Ray")
    module.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False, logging_level="ERROR")
    yield module
    module.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray itself
def test_a_data_set_of_ray(ray: Any, tmp_path: Path) -> None:
    import ray.data

    rng = np.random.default_rng(0)
    rows = {"k": rng.integers(0, 5, 1000), "x": np.arange(1000.0)}
    dataset = ray.data.from_items(
        [{"k": int(k), "x": float(x)} for k, x in zip(*rows.values(), strict=True)], override_num_blocks=7
    )
    doubled = dataset.map(lambda row: {"k": row["k"], "x": row["x"] * 2})
    store = stoker.pack(doubled, tmp_path / "a.stoker", series="k")
    for one in store:
        assert np.array_equal(one["x"], 2 * rows["x"][rows["k"] == one["k"]])
    with pytest.raises(OptionError, match="a table in memory cannot be packed in parts"):
        stoker.pack(doubled, tmp_path / "b.stoker", series="k", resources=stoker.Resources(ray="ray"))
