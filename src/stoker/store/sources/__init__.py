"""Readers of raw files, one format a file; `find` tells which reader fits which path."""
