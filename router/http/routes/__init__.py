"""Routes that belong to no single dialect."""
