"""Which samples a view has, and in which order an epoch visits them."""
