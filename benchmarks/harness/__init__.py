"""Shared parts of the benchmarks: processes, random checkpoints, saved results."""
