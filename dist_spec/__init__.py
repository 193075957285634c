"""Disaggregated speculative decoding. Importing this package imports nothing heavy."""

__all__ = ["__version__"]

__version__ = "0.1.0"
