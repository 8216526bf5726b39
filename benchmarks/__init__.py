"""One question per file, in a folder per package. Each writes its answer, with the command, machine and commit, to `results/`.

`before` and `peers` are what people use today.
"""
