"""The TFA recipe and its indicators."""
