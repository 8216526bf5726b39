"""Batches: orders, gathering, copying to a GPU, other loaders."""
