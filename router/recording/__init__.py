"""Recordings of the scheduler's calls, and their replay."""
