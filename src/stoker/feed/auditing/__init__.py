"""Auditing: the parts of `stoker.check`, from a batch of any shape to findings about samples, pairs, order and memory."""
