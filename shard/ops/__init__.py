"""Products, norms and activations whose rows do not depend on each other."""
