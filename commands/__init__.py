"""The commands: each file is one, `python -m commands.NAME`. They start flows and know no network."""

# Before anything imports Prefect: homes, threads and telemetry of this process.
import tasks  # noqa: F401
