"""Adapters: what is added to a model's products for some rows of a step, and not for others."""
