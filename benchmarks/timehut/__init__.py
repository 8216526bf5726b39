"""The TimeHUT recipe."""
