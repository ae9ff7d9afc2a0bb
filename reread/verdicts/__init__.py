"""Scores to verdicts: the rule, its statistics, its power and its error rates. Imports storage alone of the project."""
