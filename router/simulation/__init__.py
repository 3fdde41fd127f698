"""Simulation of recorded traces: `weft simulate` and `weft tune`."""
