"""Searches and batch sizes."""
