"""Diagnoses of which a test reads the measurements."""

from __future__ import annotations

from typing import Any

from stoker.diagnose.api import diagnose_script, diagnose_step
from stoker.diagnose.measurements import Measurements


def measure_script(*arguments: Any, **options: Any) -> Measurements:
    measured = diagnose_script(*arguments, **options).measurements
    assert measured is not None
    return measured


def measure_step(*arguments: Any, **options: Any) -> Measurements:
    measured = diagnose_step(*arguments, **options).measurements
    assert measured is not None
    return measured
