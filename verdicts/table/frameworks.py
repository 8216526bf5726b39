"""Programs whose loop is that of a framework."""

from __future__ import annotations

from verdicts.table.program import Program

FRAMEWORKS = [
    Program(name=f"data-{script}", script=f"with_{script}.py", arguments=arguments, clean="--samples rows", verdict="data")
    for script, arguments in {
        "accelerate": "--model mlp --width 256 --samples lines",
        "lightning": "--model mlp --features 64 --width 256 --batch 128 --samples lines",
        "transformers": "--model mlp --features 64 --width 256 --batch 128 --samples lines",
    }.items()
]
