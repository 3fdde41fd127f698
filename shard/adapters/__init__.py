"""Adapters as files and as loaded: reading, checking, the registry, merging and export."""
