// The few numbers of a Parquet footer that planning needs, for all its row groups and column chunks.
//
// pyarrow has parsed the footer before; its own accessors of columns end the process on some corrupt ones.
//
// Source: parquet.thrift of parquet-format 2.11.
#pragma once

#include <cstdint>
#include <span>

namespace stoker::parquet {

struct GroupNumbers {
  int64_t total_bytes, num_rows;
};

// -1 stands for what is not there.
struct ChunkNumbers {
  int64_t type, data_offset, dictionary_offset, compressed_bytes, uncompressed_bytes, null_count, is_encrypted,
      num_repetition_levels, num_definition_levels, has_metadata, min_bytes, max_bytes, codec, num_values,
      encodings,    // a bit for each
      unencoded_bytes;  // of all strings or binary, decoded
};

// Reads a FileMetaData; false where it is corrupt, or has not so many row groups, or columns in each.
bool read_footer(std::span<const uint8_t> bytes, std::span<GroupNumbers> groups, std::span<ChunkNumbers> chunks);

}  // namespace stoker::parquet
