"""Copies to a second memory and back while a plan runs: what all of them do, to a file, and to a host's memory."""
