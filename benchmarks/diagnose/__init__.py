"""The cost of a diagnosis, and what its patches gain."""
