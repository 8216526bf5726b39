"""Structural counts of a training step, kept within a budget."""
