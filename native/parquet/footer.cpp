#include "footer.h"

#include "thrift.h"

namespace stoker::parquet {
namespace {

using Field = ThriftReader::Field;

bool is_varint(uint8_t type) { return type == kI16 || type == kI32 || type == kI64; }

void read_statistics(ThriftReader& in, ChunkNumbers& chunk) {
  for (Field field; in.next(field);) {
    if (field.is(3, kI64))
      chunk.null_count = in.zigzag();
    else if (field.is(5, kBinary))
      chunk.max_bytes = in.binary();
    else if (field.is(6, kBinary))
      chunk.min_bytes = in.binary();
    else
      in.skip(field.type);
  }
}

void read_size_statistics(ThriftReader& in, ChunkNumbers& chunk) {
  for (Field field; in.next(field);) {
    if (field.number == 1 && is_varint(field.type)) {
      chunk.unencoded_bytes = in.zigzag();
      continue;
    }
    if (field.type == kList && (field.number == 2 || field.number == 3)) {
      ThriftReader ahead = in;
      const int64_t count = static_cast<int64_t>(ahead.elements().count);
      (field.number == 2 ? chunk.num_repetition_levels : chunk.num_definition_levels) = count;
    }
    in.skip(field.type);
  }
}

int64_t read_encodings(ThriftReader& in) {
  const auto [count, type] = in.elements();
  if (count && type != kI32) in.fail();
  uint64_t found = 0;
  for (uint64_t i = 0; i < count && !in.failed(); ++i) {
    const int64_t number = in.zigzag();
    if (0 <= number && number < 62) found |= uint64_t{1} << number;
  }
  return static_cast<int64_t>(found);
}

void read_column_metadata(ThriftReader& in, ChunkNumbers& chunk) {
  for (Field field; in.next(field);) {
    if (field.is(1, kI32))
      chunk.type = in.zigzag();
    else if (field.is(2, kList))
      chunk.encodings = read_encodings(in);
    else if (field.is(4, kI32))
      chunk.codec = in.zigzag();
    else if (field.is(5, kI64))
      chunk.num_values = in.zigzag();
    else if (field.is(6, kI64))
      chunk.uncompressed_bytes = in.zigzag();
    else if (field.is(7, kI64))
      chunk.compressed_bytes = in.zigzag();
    else if (field.is(9, kI64))
      chunk.data_offset = in.zigzag();
    else if (field.is(11, kI64))
      chunk.dictionary_offset = in.zigzag();
    else if (field.is(12, kStruct))
      read_statistics(in, chunk);
    else if (field.is(16, kStruct))
      read_size_statistics(in, chunk);
    else
      in.skip(field.type);
  }
}

void read_column_chunk(ThriftReader& in, ChunkNumbers& chunk) {
  chunk = {-1, -1, -1, -1, -1, -1, 0, -1, -1, 0, -1, -1, -1, -1, -1, -1};
  for (Field field; in.next(field);) {
    if (field.is(3, kStruct)) {
      chunk.has_metadata = 1;
      read_column_metadata(in, chunk);
    } else {
      if (field.number == 8 || field.number == 9) chunk.is_encrypted = 1;
      in.skip(field.type);
    }
  }
}

void read_row_group(ThriftReader& in, GroupNumbers& group, std::span<ChunkNumbers> chunks) {
  for (Field field; in.next(field);) {
    if (field.is(1, kList)) {
      const auto [count, type] = in.elements();
      if (count != chunks.size() || (count && type != kStruct)) return in.fail();
      for (ChunkNumbers& chunk : chunks) read_column_chunk(in, chunk);
    } else if (field.is(2, kI64)) {
      group.total_bytes = in.zigzag();
    } else if (field.is(3, kI64)) {
      group.num_rows = in.zigzag();
    } else {
      in.skip(field.type);
    }
  }
}

}  // namespace

bool read_footer(std::span<const uint8_t> bytes, std::span<GroupNumbers> groups, std::span<ChunkNumbers> chunks) {
  ThriftReader in(bytes);
  const size_t num_columns = groups.empty() ? 0 : chunks.size() / groups.size();
  for (Field field; in.next(field);) {
    if (!field.is(4, kList)) {
      in.skip(field.type);
      continue;
    }
    const auto [count, type] = in.elements();
    if (count != groups.size() || (count && type != kStruct)) return false;
    for (size_t g = 0; g < groups.size(); ++g) {
      read_row_group(in, groups[g], chunks.subspan(g * num_columns, num_columns));
      if (in.failed()) return false;
    }
  }
  return !in.failed();
}

}  // namespace stoker::parquet
