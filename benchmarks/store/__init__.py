"""Packing, opening, reading and appending stores."""
