"""Public training scripts at pinned commits: does `stoker diagnose` run on them, and is its verdict right?"""
