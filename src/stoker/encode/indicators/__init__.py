"""Indicators: bars of a market become a matrix of features, or one row at a time, by one definition.

spec          what is wanted: features by name, checked field by field
operators     what each operator means, as words of an arithmetic
assembly      definitions -> instructions -> a program of tables
kernels       the two arithmetics, compiled once: exact, and Sentio's float32
engine        a program with a state; batch and stream move it on by a million bars or by one
"""
