"""Formats of quantized checkpoints, and quantization to int8 while weights are loaded."""
