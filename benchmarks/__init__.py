"""Measurements, each a command that prints its figures with their number and spread. Speed is asserted nowhere."""
