"""Model architectures, one file for each family, and the registry that finds them by name."""
