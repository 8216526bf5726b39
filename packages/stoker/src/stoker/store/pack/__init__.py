"""Packing: raw rows become a store. `pack` is the entry point; `packer.Packer` shows its steps.

Modules in the order of the data: api, options -> plan -> values, blocks -> sorted_runs -> merge. `packer` runs them and lets a killed
pack resume. `sql` is the result of a statement as a source. `on_ray` runs a pack on a cluster: `tasks` that leave sorted runs in an
`exchange`, where others read them as `stored_runs`.
"""
