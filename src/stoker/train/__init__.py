"""Train: batches -> steps."""
