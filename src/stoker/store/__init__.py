"""Raw files become immutable, memory-mapped columns: sources -> shaping -> column files -> store.

What most need of it is in `stoker` itself. These are the further public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {
    "is_time_moe": "stoker.store.formats.time_moe:is_time_moe",
    "map_time_moe": "stoker.store.memory:map_time_moe",
}

if TYPE_CHECKING:
    from stoker.store.formats.time_moe import is_time_moe as is_time_moe
    from stoker.store.memory import map_time_moe as map_time_moe
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
