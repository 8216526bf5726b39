"""What users would pick instead: one file a library, each with the same few names.

`NEEDS` names the modules that must be importable, `prepare(folder, workload)` writes the library's own format beside
`data.npy` (not timed), and `CASES` lists the ways to read it. A case opens a loader; each call of that gives one
shuffled epoch of float32 tensors, (batch, 2048) or (batch, 48, 55), whole and in memory. Every library is used as its
documentation shows for local files; where a setting made it faster without changing what is served, it is set.
"""
