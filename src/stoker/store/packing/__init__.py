"""The way from chunks of raw rows to column files, in this order:

options, field           what was asked for, and what becomes of each column
wide, plan               all of it, over all sources; with --wide each has columns of its own
readahead                chunks are decoded on threads
values, categories       Arrow values become numbers
keys, shape, block       rows become segments of series
sorter, run, fill        segments become sorted runs on disk, through the background writer
merge                    several runs become one
seal                     the run becomes the shards of a store
journal, identity        how far a pack is, and whether a later one is the same
state, packing           the whole of it
"""
