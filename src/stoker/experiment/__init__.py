"""Training runs described by a config file."""
