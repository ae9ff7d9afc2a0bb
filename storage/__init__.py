"""The lowest room: errors that a user can act on, files, locks, settings and registries.

Everything here needs numpy and the standard library alone, so that each floor above may use it, also on a
machine that has nothing but torch.
"""
