"""The command line: ``main.py`` has the programs, ``commands/`` a file for each command."""
