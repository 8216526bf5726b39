"""The IceCube recipe."""
