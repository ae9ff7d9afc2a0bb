"""Train one network with one seed:  python -m training JOB.json [--events]

A run that is finished (it has a result.json) returns at once, one that was killed goes on after its last whole epoch.
Exit code 0: finished; 2: bad input or a non-finite loss, one line on stderr; 143: stopped by SIGTERM, can be resumed.
"""

import argparse
import signal
import sys
from pathlib import Path

from storage.errors import InputError, command
from storage.files import read_json
from training.progress import Progress
from training.settings import Job


@command
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description="Train one network with one seed.")
    parser.add_argument("job", type=Path, help="the job file (JSON)")
    parser.add_argument("--events", action="store_true", help="one JSON object a line on stdout")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    job = Job.read(options.job)
    progress = Progress(job, options.events)
    result_file = job.run_directory / "result.json"
    try:
        if result_file.is_file():
            result = read_json(result_file)
        else:
            from training.run import run  # torch takes two seconds, and a finished run does without

            result = run(job, read_json(options.job), progress)
    except SystemExit:
        progress.failed("stopped by SIGTERM; run the same command again to go on")
        raise
    except InputError as error:
        progress.failed(str(error))
        raise
    except Exception as error:
        progress.failed(f"{type(error).__name__}: {error}")
        raise
    progress.finished(result)


if __name__ == "__main__":
    main()
