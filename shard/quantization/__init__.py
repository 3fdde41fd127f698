"""Formats of quantised checkpoints, and quantisation to int8 while weights are loaded."""
