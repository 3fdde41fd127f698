"""Benchmarks on a GPU: step latency beside the roofline, throughput beside `transformers`."""
