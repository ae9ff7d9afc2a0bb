"""Prefect flows: what runs, and in which order. Each file is a flow."""

# Before any flow imports Prefect: homes, threads and telemetry of this process.
import tasks  # noqa: F401
