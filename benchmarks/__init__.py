"""Whole training steps against what a user would run instead: ``python -m benchmarks.NAME`` on a GPU machine."""
