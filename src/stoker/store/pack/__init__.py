"""From raw rows to a store: plan, read, sort, merge, seal, commit."""
