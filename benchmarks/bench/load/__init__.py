"""Load generator: arrivals, prompts, HTTP clients and the records of their requests."""
