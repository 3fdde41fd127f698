"""Adapters by the names that clients use, and the client of the adapter store."""
