"""Batches, sequences and blocks of a shard; each message is checked whole before it changes anything."""
