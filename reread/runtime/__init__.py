"""The process and its device: GPU leases, determinism and garbage collection, for training and evaluation."""
