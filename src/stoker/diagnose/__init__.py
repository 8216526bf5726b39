"""Diagnose: a running program -> verdict, why and next.

These are all the public names. Each is imported when first used.
"""

from typing import TYPE_CHECKING

_LAZY = {
    "Finding": "stoker.diagnose.finding:Finding",
    "Measurements": "stoker.diagnose.measurements:Measurements",
    "find_wrong": "stoker.diagnose.correctness:find_wrong",
    "gate_step": "stoker.diagnose.gate:gate_step",
    "measure_script": "stoker.diagnose.script:measure_script",
    "measure_step": "stoker.diagnose.function:measure_step",
    "script": "stoker.diagnose.script:script",
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
    from stoker.diagnose.script import measure_script as measure_script
    from stoker.diagnose.script import script as script
    from stoker.diagnose.stopwatch import watch as watch
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __all__ = sorted(_LAZY)

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module 'stoker.diagnose' has no attribute {name!r}")
        from importlib import import_module

        module, _, attribute = _LAZY[name].partition(":")
        value = globals()[name] = getattr(import_module(module), attribute)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LAZY})
