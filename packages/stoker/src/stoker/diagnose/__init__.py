"""Find the bottleneck of a training run: run it, measure it, and return verdict, reason and next steps.

These are all the public names. Each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {
    "Finding": "stoker.diagnose.finding:Finding",
    "Measurements": "stoker.diagnose.measurements:Measurements",
    "diagnose_script": "stoker.diagnose.api:diagnose_script",
    "diagnose_step": "stoker.diagnose.api:diagnose_step",
}

if TYPE_CHECKING:
    from stoker.diagnose.api import diagnose_script as diagnose_script
    from stoker.diagnose.api import diagnose_step as diagnose_step
    from stoker.diagnose.finding import Finding as Finding
    from stoker.diagnose.measurements import Measurements as Measurements
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
