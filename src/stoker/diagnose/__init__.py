"""Diagnose: a running program -> verdict, why and next."""
