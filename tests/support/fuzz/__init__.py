"""Fuzzing: what reads bytes of strangers, each as a function of bytes that raises on a defect (`targets`), driven by
atheris (`run_atheris`) and, with a small corpus, by every run of the tests.
"""
