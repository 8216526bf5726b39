"""Experiments: suspects and fixes, switched on in a program that runs, or in a trial. One suspect or fix per file; table.py lists them.

A suspect (`Experiment`) is removed from some windows of steps, in turn with unchanged windows (`fix_gain` of windows.py), to see what it
costs. The result is not that of the training: steps get stale values, which take no time. division.py divides a step by what was saved.

A fix (`Fix`) keeps the training as it is. A trial (trials.py) runs a program in a fresh process with one fix from the start, and
compares it with the baseline. Most fixes can also be switched on and off in a program that runs: a diagnosis measures some steps with
each, and predicts its speed-up (advice.py).

To add one, write a class in a file of this folder, and a row in `EXPERIMENTS` or `FIXES` of table.py. Sentences are in wording.py.
"""
