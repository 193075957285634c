"""Whole-cluster simulation: the workers' own steps on virtual time, one thread, one seed."""
