"""Checks of any iterable of batches: what is wrong with it."""
