"""Metrics, spans and the log of recent requests."""
