"""Sequences: rows of events grouped by whose they are, padded or packed, in one pass."""
