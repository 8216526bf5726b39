"""Packing: raw rows become a store. `pack` is the entry point; `packer.Packer` shows its steps.

Modules in the order of the data: api, options -> plan -> values, blocks -> sorted_runs -> merge. `packer` runs them and lets a killed
pack resume. `sql` is the result of a statement as a source. `on_ray` runs a pack on a cluster: `tasks` that leave sorted runs in an
`exchange`, where others read them as `stored_runs`.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

if TYPE_CHECKING:
    from stoker.store.pack.api import pack as pack
    from stoker.store.pack.options import PackOptions as PackOptions
    from stoker.store.pack.packer import Packer as Packer
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "PackOptions": "stoker.store.pack.options:PackOptions",
            "Packer": "stoker.store.pack.packer:Packer",
            "pack": "stoker.store.pack.api:pack",
        },
    )
