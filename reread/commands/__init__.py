"""The command ``reread``: each file that defines ``command`` is the subcommand of its name.

A file holds its options and its logic, and its docstring is its help. It imports torch, MLflow and Prefect inside
functions, so that help and completion are quick.
"""

# Before anything imports Prefect: homes, threads and telemetry of this process.
import tasks  # noqa: F401
