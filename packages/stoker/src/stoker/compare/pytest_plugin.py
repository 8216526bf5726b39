"""The pytest fixture `stoker_compare`: a test fails if another version of a training script is not what is required of it.

    def test_the_fast_trainer(stoker_compare):
        stoker_compare("train.py", "train_fast.py", ["--epochs", "2"], require="loss=rounding,memory<=1.1")

pytest loads this file in every project that has stoker installed, so it imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stoker.compare.receipt import Receipt

REQUIRED = "loss=rounding"


@pytest.fixture
def stoker_compare(request: pytest.FixtureRequest) -> Callable[..., Receipt]:
    """Compare two scripts, whose paths are relative to the folder of the test, and fail unless `require` holds."""

    def compared(
        before: str | Path, after: str | Path, arguments: Sequence[str] = (), *, require: str = REQUIRED, **options: Any
    ) -> Receipt:
        from stoker.compare import compare

        __tracebackhide__ = True
        folder = request.path.parent
        receipt = compare(folder / before, folder / after, arguments, require=require, **options)
        if receipt.status:
            pytest.fail(str(receipt), pytrace=False)
        return receipt

    return compared
