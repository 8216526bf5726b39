"""Raw files become immutable, memory-mapped columns: sources -> shaping -> column files -> store."""
