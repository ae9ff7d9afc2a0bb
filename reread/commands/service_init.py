"""Write the settings and passwords of a team's service.

reread service init
reread service init --settings OTHER.env

Only their owner may read the file. An existing one is left alone.
"""

from rich.console import Console

from reread.commands.service_settings import SETTINGS, Settings, write_settings


def command(settings: Settings = SETTINGS) -> None:
    write_settings(settings)
    Console(highlight=False, soft_wrap=True).print(
        f"{settings} is written. Read it, then:\n\n"
        "  reread service sql | sudo -u postgres psql\n"
        "  reread serve --service",
        markup=False,
    )
