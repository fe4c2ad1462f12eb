#include "metadata.h"

#include <algorithm>

#include "thrift.h"

namespace stoker::parquet {
namespace {

using Field = ThriftReader::Field;

// More pages than a column chunk has that was written in earnest: one of 1 GiB in pages of 8 KiB has 131,072.
constexpr size_t kMostPages = 1 << 22;
constexpr int64_t kMostNumber = 0x7FFFFFFF;

// The fields of a PageHeader that describe pages of each kind. Each is the kind and five.
constexpr int64_t kDataHeader = 5, kDictionaryHeader = 7, kDataHeaderV2 = 8;

// Notes which of the first fields of a struct, all numbers of 32 bits, were there: those that the format requires. What
// lacks one is no header to pyarrow.
struct Required {
  int64_t num;
  uint64_t seen = 0;

  void see(const Field& field) {
    if (field.type == kI32 && field.number >= 1 && field.number <= num) seen |= uint64_t{1} << (field.number - 1);
  }
  bool are_there() const { return seen == (uint64_t{1} << num) - 1; }
};

// Reads a DataPageHeader or a DictionaryPageHeader; false where it has levels as nobody has written them for years.
bool read_inner_header(ThriftReader& in, bool has_levels, Page& page) {
  Required required{has_levels ? 4 : 2};
  bool is_known = true;
  for (Field field; in.next(field);) {
    required.see(field);
    if (field.is(1, kI32))
      page.num_entries = in.zigzag();
    else if (field.is(2, kI32))
      page.encoding = in.zigzag();
    else if (has_levels && (field.is(3, kI32) || field.is(4, kI32)))
      is_known &= in.zigzag() == kRle;
    else
      in.skip(field.type);
  }
  return is_known && required.are_there();
}

bool read_inner_header_v2(ThriftReader& in, Page& page) {
  Required required{6};
  bool is_known = true;
  for (Field field; in.next(field);) {
    required.see(field);
    if (field.is(1, kI32)) {
      page.num_entries = in.zigzag();
    } else if (field.is(2, kI32) || field.is(3, kI32)) {  // nulls and rows, which nobody needs, and which may not lie
      const int64_t num = in.zigzag();
      is_known &= num >= 0 && num <= kMostNumber;
    } else if (field.is(4, kI32)) {
      page.encoding = in.zigzag();
    } else if (field.is(5, kI32)) {
      page.definition_bytes = in.zigzag();
    } else if (field.is(6, kI32)) {
      page.repetition_bytes = in.zigzag();
    } else {
      if (field.is(7, kFalse)) page.is_packed = false;
      in.skip(field.type);
    }
  }
  return is_known && required.are_there();
}

void read_header(ThriftReader& in, Page& page) {
  page = {};
  Required required{3};
  bool is_known = true;
  int64_t inner = 0;
  for (Field field; in.next(field);) {
    required.see(field);
    if (field.is(1, kI32)) {
      page.kind = in.zigzag();
    } else if (field.is(2, kI32)) {
      page.plain_bytes = in.zigzag();
    } else if (field.is(3, kI32)) {
      page.stored_bytes = in.zigzag();
    } else if (field.is(4, kI32)) {
      page.checksum = in.zigzag() & 0xFFFFFFFF;
    } else if (field.is(kDataHeader, kStruct) || field.is(kDictionaryHeader, kStruct)) {
      inner += field.number;
      is_known &= read_inner_header(in, field.number == kDataHeader, page);
    } else if (field.is(kDataHeaderV2, kStruct)) {
      inner += field.number;
      is_known &= read_inner_header_v2(in, page);
    } else {
      in.skip(field.type);
    }
  }
  if (!is_known || !required.are_there() || page.kind != inner - 5) page.kind = kUnknownPage;
}

// Whether what a header says can be true of a page before which so many bytes lie.
bool is_sound(const Page& page, int64_t num_left) {
  for (int64_t number : {page.stored_bytes, page.plain_bytes, page.num_entries, page.definition_bytes,
                         page.repetition_bytes})
    if (number < 0 || number > kMostNumber) return false;
  const int64_t levels = page.level_bytes();
  if (is_inflated(page)) return false;
  if (page.stored_bytes > num_left || levels > page.stored_bytes || levels > page.plain_bytes) return false;
  // A value takes a byte at least.
  return page.kind != kDictionary || page.num_entries <= page.plain_bytes;
}

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

bool read_page_header(std::span<const uint8_t> content, Page& page) {
  ThriftReader in(content);
  read_header(in, page);
  page.at = static_cast<int64_t>(in.at());
  return !in.failed() && std::min(page.definition_bytes, page.repetition_bytes) >= 0 &&
         std::max(page.definition_bytes, page.repetition_bytes) <= kMostNumber;
}

int64_t scan_pages(std::span<const uint8_t> content, std::vector<Page>& pages) {
  const int64_t end = static_cast<int64_t>(content.size());
  int64_t at = 0;
  while (at < end && pages.size() < kMostPages) {
    ThriftReader in(content, static_cast<size_t>(at));
    Page page;
    read_header(in, page);
    page.at = static_cast<int64_t>(in.at());
    if (in.failed() || !is_sound(page, end - page.at)) break;
    pages.push_back(page);
    at = page.at + page.stored_bytes;
  }
  return at;
}

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
