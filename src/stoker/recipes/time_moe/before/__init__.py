"""Before: how the authors of Time-MoE read and train, written anew, for `stoker bench time-moe` and for tests to compare with.

dataset   open the file, read the whole series, normalise it all, cut one window, pad it
model     eager attention with all scores, experts one after the other, labels unfolded
"""
