"""Training from object storage: the config names a URL and a cache, and each epoch says what it has cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.object_folder import Storage

import stoker
from stoker.errors import OptionError
from stoker.experiment.prepare import _resumed
from stoker.store import upload


@pytest.fixture(autouse=True)
def _stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Storage(tmp_path / "buckets", monkeypatch, 1 << 12)
    rng = np.random.default_rng(0)
    local = stoker.Store.from_arrays(x=[rng.normal(size=size).astype("f4") for size in (3000, 5000)]).save("a")
    upload(local.path, "test://a")


def config(store: str, cache: str = "") -> Any:
    data = f"store: '{store}', view: {{name: windows, length: 8, horizon: 2}}, batch_size: 256{cache}"
    Path("config.yaml").write_text(f"data: {{{data}}}\nmodel: linear\ntrain: {{epochs: 2, device: cpu}}\n")
    return stoker.experiment.load("config.yaml")


@pytest.mark.promise("P31")
def test_a_run_from_a_url_is_that_of_the_local_store_and_reports_its_traffic(tmp_path: Path) -> None:
    lines: list[str] = []
    cache = f", cache: {{folder: {tmp_path}/cache, size: 64KB}}"
    there = stoker.experiment.run(config("test://a", cache), folder="there", progress=False, report=lines.append)
    here = stoker.experiment.run(config("a"), folder="here", progress=False)
    assert there.metrics == here.metrics
    told = [line for line in lines if line.startswith("  storage")]
    assert len(told) == 2
    assert told[1] == "  storage    epoch 1: 0 requests (0 repeated), 0 B read from test://a"
    assert (tmp_path / "cache" / ".stoker-cache").exists()
    now = _resumed(Path("there"), ["data.cache.folder=/other"], []).config  # on another machine
    assert now.data.cache.folder == "/other"


@pytest.mark.promise("P31")
def test_a_config_with_credentials_is_refused_and_not_kept() -> None:
    with pytest.raises(OptionError, match="may be credentials"):
        stoker.experiment.run(config("s3://key:SECRET@bucket/a"), folder="run", progress=False)
    assert not any("SECRET" in path.read_text() for path in Path().glob("run/*"))
