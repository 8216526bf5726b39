"""One question a file. Each writes its answer, with the command, machine and commit, to `benchmarks/results/`."""
