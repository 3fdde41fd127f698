"""Validation of requests against every limit."""
