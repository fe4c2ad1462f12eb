#include "metadata.h"

#include <algorithm>

#include "thrift.h"

namespace stoker::parquet {
namespace {

using Field = ThriftReader::Field;

// More pages than a column chunk has that was written in earnest: one of 1 GiB in pages of 8 KiB has 131,072.
constexpr size_t kMostPages = 1 << 22;

constexpr bool is_size(int64_t number) { return 0 <= number && number <= 0x7FFFFFFF; }

// A field of a struct that is a number, or something binary of which the length is wanted, and where that goes.
template <typename T>
struct Wanted {
  int64_t number;
  uint8_t type;
  int64_t T::*to;
};

// Reads a struct: the numbers that are wanted, `other` all else. Returns a bit for each wanted field that was there.
template <typename T, size_t N, typename Other>
uint64_t read_struct(ThriftReader& in, const Wanted<T> (&wanted)[N], T& target, Other other) {
  uint64_t seen = 0;
  for (Field field; in.next(field);) {
    const auto found = std::ranges::find_if(wanted, [&](const auto& one) { return field.is(one.number, one.type); });
    if (found == std::end(wanted)) {
      other(field);
      continue;
    }
    target.*found->to = field.type == kBinary ? in.binary() : in.zigzag();
    seen |= uint64_t{1} << (found - wanted);
  }
  return seen;
}

// Whether the first fields that are wanted were there, which the format requires: what lacks one is no header to pyarrow.
constexpr bool has_first(uint64_t seen, int num) { return (~seen & ((uint64_t{1} << num) - 1)) == 0; }

struct Header : Page {
  int64_t definition_encoding = kRle, repetition_encoding = kRle;
  int64_t num_nulls = 0, num_rows = 0;  // which nobody needs, and which may not lie
};

using HeaderField = Wanted<Header>;
constexpr HeaderField kPageHeader[] = {
    {1, kI32, &Header::kind}, {2, kI32, &Header::plain_bytes}, {3, kI32, &Header::stored_bytes}, {4, kI32, &Header::checksum}};
constexpr HeaderField kDictionaryHeader[] = {{1, kI32, &Header::num_entries}, {2, kI32, &Header::encoding}};
constexpr HeaderField kDataHeader[] = {{1, kI32, &Header::num_entries},
                                       {2, kI32, &Header::encoding},
                                       {3, kI32, &Header::definition_encoding},
                                       {4, kI32, &Header::repetition_encoding}};
constexpr HeaderField kDataHeaderV2[] = {{1, kI32, &Header::num_entries},      {2, kI32, &Header::num_nulls},
                                         {3, kI32, &Header::num_rows},         {4, kI32, &Header::encoding},
                                         {5, kI32, &Header::definition_bytes}, {6, kI32, &Header::repetition_bytes}};

Page read_header(ThriftReader& in) {
  Header page;
  int64_t described = 0;  // the kinds of page that the header describes, together
  bool is_known = true;
  const auto skip = [&](const Field& field) { in.skip(field.type); };
  const uint64_t seen = read_struct(in, kPageHeader, page, [&](const Field& field) {
    if (field.is(5, kStruct)) {
      is_known &= has_first(read_struct(in, kDataHeader, page, skip), 4);
    } else if (field.is(7, kStruct)) {
      is_known &= has_first(read_struct(in, kDictionaryHeader, page, skip), 2);
    } else if (field.is(8, kStruct)) {
      const uint64_t inner = read_struct(in, kDataHeaderV2, page, [&](const Field& one) {
        if (one.is(7, kFalse)) page.is_packed = false;
        in.skip(one.type);
      });
      is_known &= has_first(inner, 6);
    } else {
      return in.skip(field.type);
    }
    described += field.number;
  });
  if (seen >> 3 & 1) page.checksum &= 0xFFFFFFFF;
  is_known &= is_size(page.num_nulls) && is_size(page.num_rows);
  // Levels in another encoding nobody has written for years.
  is_known &= page.definition_encoding == kRle && page.repetition_encoding == kRle;
  if (!is_known || !has_first(seen, 3) || page.kind != described - 5) page.kind = kUnknownPage;
  page.at = static_cast<int64_t>(in.at());
  return page;
}

// Whether what a header says can be true of a page before which so many bytes lie.
bool is_sound(const Page& page, int64_t num_left) {
  for (const int64_t number : {page.stored_bytes, page.plain_bytes, page.num_entries, page.definition_bytes, page.repetition_bytes})
    if (!is_size(number)) return false;
  const int64_t levels = page.level_bytes();
  if (is_inflated(page) || page.stored_bytes > num_left) return false;
  if (levels > page.stored_bytes || levels > page.plain_bytes) return false;
  // A value takes a byte at least.
  return page.kind != kDictionary || page.num_entries <= page.plain_bytes;
}

using Chunk = ChunkNumbers;
constexpr Wanted<Chunk> kStatistics[] = {{3, kI64, &Chunk::null_count}, {5, kBinary, &Chunk::max_bytes}, {6, kBinary, &Chunk::min_bytes}};
constexpr Wanted<Chunk> kSizes[] = {{1, kI64, &Chunk::unencoded_bytes}, {1, kI32, &Chunk::unencoded_bytes}, {1, kI16, &Chunk::unencoded_bytes}};
constexpr Wanted<Chunk> kMetadata[] = {
    {1, kI32, &Chunk::type},        {4, kI32, &Chunk::codec},        {5, kI64, &Chunk::num_values},
    {6, kI64, &Chunk::uncompressed_bytes}, {7, kI64, &Chunk::compressed_bytes},
    {9, kI64, &Chunk::data_offset}, {11, kI64, &Chunk::dictionary_offset}};
constexpr Wanted<GroupNumbers> kGroup[] = {{2, kI64, &GroupNumbers::total_bytes}, {3, kI64, &GroupNumbers::num_rows}};

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

void read_column_metadata(ThriftReader& in, Chunk& chunk) {
  read_struct(in, kMetadata, chunk, [&](const Field& field) {
    if (field.is(2, kList)) {
      chunk.encodings = read_encodings(in);
    } else if (field.is(12, kStruct)) {
      read_struct(in, kStatistics, chunk, [&](const Field& one) { in.skip(one.type); });
    } else if (field.is(16, kStruct)) {
      read_struct(in, kSizes, chunk, [&](const Field& one) {
        ThriftReader ahead = in;
        if (one.is(2, kList)) chunk.num_repetition_levels = static_cast<int64_t>(ahead.elements().count);
        if (one.is(3, kList)) chunk.num_definition_levels = static_cast<int64_t>(ahead.elements().count);
        in.skip(one.type);
      });
    } else {
      in.skip(field.type);
    }
  });
}

void read_column_chunk(ThriftReader& in, Chunk& chunk) {
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

}  // namespace

bool read_page_header(std::span<const uint8_t> content, Page& page) {
  ThriftReader in(content);
  page = read_header(in);
  return !in.failed() && is_size(page.definition_bytes) && is_size(page.repetition_bytes);
}

int64_t scan_pages(std::span<const uint8_t> content, std::vector<Page>& pages) {
  const int64_t end = static_cast<int64_t>(content.size());
  int64_t at = 0;
  while (at < end && pages.size() < kMostPages) {
    ThriftReader in(content, static_cast<size_t>(at));
    Page page = read_header(in);
    if (in.failed() || !is_sound(page, end - page.at)) break;
    page.stored = content.subspan(in.at(), static_cast<size_t>(page.stored_bytes));
    pages.push_back(page);
    at = page.at + page.stored_bytes;
  }
  return at;
}

bool read_footer(std::span<const uint8_t> bytes, std::span<GroupNumbers> groups, std::span<ChunkNumbers> chunks) {
  ThriftReader in(bytes);
  const size_t num_columns = groups.empty() ? 0 : chunks.size() / groups.size();
  // Reads the head of a list of structs; the reader fails where there are not as many as are expected.
  const auto begin_list = [&](size_t expected) {
    const auto [count, type] = in.elements();
    if (count != expected || (count && type != kStruct)) in.fail();
  };
  for (Field field; in.next(field);) {
    if (!field.is(4, kList)) {
      in.skip(field.type);
      continue;
    }
    begin_list(groups.size());
    for (size_t g = 0; g < groups.size() && !in.failed(); ++g) {
      read_struct(in, kGroup, groups[g], [&](const Field& one) {
        if (!one.is(1, kList)) return in.skip(one.type);
        begin_list(num_columns);
        for (size_t i = 0; i < num_columns && !in.failed(); ++i) read_column_chunk(in, chunks[g * num_columns + i]);
      });
    }
  }
  return !in.failed();
}

}  // namespace stoker::parquet
