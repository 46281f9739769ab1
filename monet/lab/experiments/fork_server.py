"""Imported first, and only, by the server that forks processes of measured steps: Ctrl-C, which a terminal sends to all
processes of a command, is the command's business while the server imports what steps need."""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
