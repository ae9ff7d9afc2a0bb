"""The process and its device: GPU leases and determinism, for training and evaluation."""
