"""Weights to verdicts: metrics of one run, statistics over seeds and test items, pictures and the report."""
