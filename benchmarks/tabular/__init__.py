"""The recipe for tables: encoders, training, generation, quality."""
