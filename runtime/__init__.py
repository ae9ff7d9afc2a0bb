"""The process and its device: which GPU it has, and how repeatably it computes. Below training and evaluation."""
