"""Attention backends, the KV cache, and the token spans and block tables that they read."""
