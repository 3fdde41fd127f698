"""A worker without a model, with scripted faults."""
