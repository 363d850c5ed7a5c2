"""The fleet under load and under fire: real workers and a real PostgreSQL on an S3 and SQS emulator, measured."""
