"""What the fault tests share: warm processes that fork a child for each case, and a folder that is quick to fill."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness import Zygote

READERS = [f"stoker.store.formats.{name}" for name in ("discover", "parquet", "arrow", "csv")]


@pytest.fixture(scope="session")
def pack_zygote() -> Iterator[Zygote]:
    """A zygote that has imported all that a pack needs: a child packs at once."""
    with Zygote(imports=["pandas", "pyarrow.pandas_compat", *READERS, "tests.faults.shapes"]) as zygote:
        yield zygote


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A folder in memory where there is one, as thousands of syncs are not what most tests are about."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="stoker-faults-", dir=memory if os.access(memory, os.W_OK) else None))
    yield path
    shutil.rmtree(path)
