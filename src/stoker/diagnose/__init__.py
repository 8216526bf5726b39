"""Diagnose: a running program -> verdict, why and next.

These are all the public names. Each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {
    "Finding": "stoker.diagnose.measurements:Finding",
    "Measurements": "stoker.diagnose.measurements:Measurements",
    "audit_loaders": "stoker.diagnose.correctness:audit_loaders",
    "gate_step": "stoker.gate.gate:gate_step",
    "measure_script": "stoker.diagnose.scripts:measure_script",
    "measure_step": "stoker.diagnose.scripts:measure_step",
    "script": "stoker.diagnose.scripts:script",
    "step": "stoker.diagnose.scripts:step",
    "watch": "stoker.diagnose.watch:watch",
}

if TYPE_CHECKING:
    from stoker.diagnose.correctness import audit_loaders as audit_loaders
    from stoker.diagnose.measurements import Finding as Finding
    from stoker.diagnose.measurements import Measurements as Measurements
    from stoker.diagnose.scripts import measure_script as measure_script
    from stoker.diagnose.scripts import measure_step as measure_step
    from stoker.diagnose.scripts import script as script
    from stoker.diagnose.scripts import step as step
    from stoker.diagnose.watch import watch as watch
    from stoker.gate.gate import gate_step as gate_step
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
