"""The same as ``reread``: python -m reread.commands."""

from reread.commands.app import main

main()
