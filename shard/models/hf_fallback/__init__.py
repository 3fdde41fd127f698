"""Architectures without a file of their own, run by transformers' modules."""
