"""Diagnose: a running program -> verdict, why and next.

These are all the public names. Each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker.lazy import lazy

_LAZY = {
    "Finding": "stoker.diagnose.finding:Finding",
    "Measurements": "stoker.diagnose.measurements:Measurements",
    "find_wrong": "stoker.diagnose.correctness:find_wrong",
    "gate_step": "stoker.diagnose.gate:gate_step",
    "measure_script": "stoker.diagnose.scripts:measure_script",
    "measure_step": "stoker.diagnose.function:measure_step",
    "script": "stoker.diagnose.scripts:script",
    "step": "stoker.diagnose.function:step",
    "watch": "stoker.diagnose.stopwatch:watch",
}

if TYPE_CHECKING:
    from stoker.diagnose.correctness import find_wrong as find_wrong
    from stoker.diagnose.finding import Finding as Finding
    from stoker.diagnose.function import measure_step as measure_step
    from stoker.diagnose.function import step as step
    from stoker.diagnose.gate import gate_step as gate_step
    from stoker.diagnose.measurements import Measurements as Measurements
    from stoker.diagnose.scripts import measure_script as measure_script
    from stoker.diagnose.scripts import script as script
    from stoker.diagnose.stopwatch import watch as watch
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
