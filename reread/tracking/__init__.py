"""The only door to MLflow: runs, the registry of models, the served model."""
