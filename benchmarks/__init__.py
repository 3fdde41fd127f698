"""Benchmarks of weft: a load generator (bench), programs for single questions, measurements on a GPU, and the batching
study.
"""
