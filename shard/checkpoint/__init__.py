"""Safetensors checkpoints, read in the slices that a rank needs."""
