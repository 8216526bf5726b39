"""File formats: each reads one kind of raw file as Arrow tables."""
