"""Digits: one small whole number for each decimal place of a column, and the way back."""
