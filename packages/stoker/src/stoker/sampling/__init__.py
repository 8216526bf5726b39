"""Sampling: what a sample is (views), which samples are used (subsets), and which comes when (orders)."""
