"""Columns of the arrays that the numbers of a Parquet footer come in; see `footer_numbers`."""

# Columns of the array of column chunks.
TYPE = 0
DATA_OFFSET = 1
DICTIONARY_OFFSET = 2
COMPRESSED = 3
UNCOMPRESSED = 4
NULL_COUNT = 5
IS_ENCRYPTED = 6
NUM_REPETITION_LEVELS = 7
NUM_DEFINITION_LEVELS = 8
HAS_METADATA = 9
MIN_BYTES = 10
MAX_BYTES = 11
CODEC = 12
NUM_VALUES = 13
ENCODINGS = 14  # a bit for each
WORD_BYTES = 15  # of all strings or binary, decoded
NUM_CHUNK_NUMBERS = 16

# Columns of the array of row groups.
TOTAL_BYTES = 0
NUM_ROWS = 1
NUM_GROUP_NUMBERS = 2
