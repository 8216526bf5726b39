"""Runs as a live page: `stoker live runs/`. It reads the files of runs, and nothing of their processes."""
