"""Adapter store: a process that fetches LoRA adapters from their sources, checks them and keeps them on disk."""
