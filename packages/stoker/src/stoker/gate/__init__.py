"""Gate: integer counts of a training step, kept within a budget.

These are all the public names. Each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

if TYPE_CHECKING:
    from stoker.gate.budget import Gate as Gate
    from stoker.gate.gate import gate_script as gate_script
    from stoker.gate.gate import gate_step as gate_step
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__)
