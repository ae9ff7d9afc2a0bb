"""Measurements that the README quotes: each is a command that prints its figures with their number and spread."""
