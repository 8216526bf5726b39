"""Watch a training run all the time: find a slowdown within a hundred steps, and name its cause."""
