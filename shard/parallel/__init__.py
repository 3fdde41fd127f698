"""Ranks of a tensor-parallel group."""
