"""The pure core: every decision about waiting, running, batches, cache blocks and steps."""
