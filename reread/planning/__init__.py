"""From an experiment, params.yaml and the environment to resolved jobs and their keys."""
