"""Numbers as digits: the split of columns, its kernels, and the window of decimal places."""
