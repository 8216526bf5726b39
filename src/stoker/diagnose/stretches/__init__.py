"""Stretches: steps in which one thing is different. A file has those that are about one thing; `course` has all in order."""
