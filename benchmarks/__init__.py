"""Measurements: each module is a command that prints its figures with their number and spread."""
