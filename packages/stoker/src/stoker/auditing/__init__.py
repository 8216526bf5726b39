"""Audit of any iterable of batches; the entry point is `stoker.audit`."""
