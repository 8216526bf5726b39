"""Statistics: what the columns of a table hold, from one pass; parts of a table can be analysed apart and joined."""
