"""Logs, spans, start-up progress and the log of steps."""
