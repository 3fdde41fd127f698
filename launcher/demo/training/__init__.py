"""Training of the embedded model and its adapters; not part of the wheel."""
