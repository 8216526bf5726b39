"""What the fault tests share: one warm process that forks a child for each case."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.testing import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote
