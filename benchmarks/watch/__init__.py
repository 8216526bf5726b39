"""The cost and the findings of the watch."""
