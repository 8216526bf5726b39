"""Indicators: bars of a market become a matrix of features, in batch or one bar at a time, from one definition.

spec          the requested features, validated field by field
operators     the definition of each operator in both arithmetics
program       definitions -> instructions -> a program, which is a table
exact         the float64 arithmetic: its kernel and its instructions
sentio        the float32 arithmetic of Sentio's C++ builder, bit for bit
bars          tables of bars as columns, checks of their order, and the frame of features
engine        a program with its state: `features`, `FeatureStream`, `write_features`
"""
