"""The same as ``reread``: python -m commands."""

from commands.app import main

main()
