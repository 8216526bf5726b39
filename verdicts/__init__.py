"""Programs with a known cause, put there on purpose: `table` lists them, `programs/` has the scripts, `measure` proves causes.

`others/` has held-out scripts.
"""
