"""Operators by family: what each means in both arithmetics, and from which bar on it says something."""
