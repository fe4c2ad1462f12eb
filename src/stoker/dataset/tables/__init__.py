"""Tables whose log says which files, and which of their rows, count: Delta's and Iceberg's.

Dataset("delta://s3://lake/events", version=12)      the table in that folder, as it was after its 12th commit
Dataset("iceberg://prod/web.events", snapshot=...)   the one that a catalogue knows under this name

log ── deltalake, pyiceberg ──► Table: files, partition values, deleted rows, names ──► a listing like any other
"""
