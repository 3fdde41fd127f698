"""One program per question, run as `python -P -m benchmarks.experiments.NAME`."""
