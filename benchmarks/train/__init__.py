"""Steps, checkpoints and ranks of the trainer."""
