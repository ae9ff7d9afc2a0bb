"""The lowest room: errors that a user can act on, files, locks, settings and registries.

Everything here needs only numpy and the standard library, so that every room may use it, also on a machine with only
torch.
"""
