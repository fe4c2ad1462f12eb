// What a Parquet file says of itself, as far as it is needed: the headers of pages, by which these are found, and of the
// footer the few numbers that planning needs, for all its row groups and column chunks.
//
// pyarrow has parsed the footer before; its own accessors of columns end the process on some corrupt ones.
//
// Source: Apache Parquet format 2.11, parquet.thrift: PageHeader, FileMetaData.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stoker::parquet {

// Numbers of the format.
enum PageKind : int64_t { kData = 0, kDictionary = 2, kDataV2 = 3, kUnknownPage = -2 };
enum Encoding : int64_t { kPlain = 0, kPlainDictionary = 2, kRle = 3, kRleDictionary = 8, kByteStreamSplit = 9 };

inline bool is_by_dictionary(int64_t encoding) { return encoding == kPlainDictionary || encoding == kRleDictionary; }

// All sizes and counts are proven to lie within 32 bits, and the content within what was scanned.
struct Page {
  int64_t kind = -1;
  int64_t at = 0;                           // where its content begins
  int64_t stored_bytes = -1;                // of its content
  int64_t plain_bytes = -1;                 // of its content before it was compressed
  int64_t num_entries = -1;                 // values, nulls and empty lists
  int64_t encoding = -1;                    // of the values
  int64_t definition_bytes = 0;             // of levels that stand uncompressed before the values
  int64_t repetition_bytes = 0;
  int64_t checksum = -1;                    // CRC32 of the content as it is stored; -1: it has none
  bool is_packed = true;                    // whether the values are compressed, in a compressed column chunk
  std::span<const uint8_t> stored;          // its content, where it was found

  int64_t level_bytes() const { return definition_bytes + repetition_bytes; }
};

// Finds the pages that lie one behind the other as a whole, and appends them; returns where the last one ends.
// Behind it may lie the beginning of another page, or what is none.
int64_t scan_pages(std::span<const uint8_t> content, std::vector<Page>& pages);

// Whether a page claims to become far more than what is stored of it, before any memory is taken for it. Writers end pages
// at about a megabyte; larger ones hold large values, which compress less than this.
inline bool is_inflated(const Page& page) {
  constexpr int64_t kUsual = 64 << 20, kMostRatio = 16;
  return page.plain_bytes > kUsual && page.plain_bytes / kMostRatio > page.stored_bytes;
}

// Reads the header of the page at the beginning of `content`; false where it is none, or cut short.
bool read_page_header(std::span<const uint8_t> content, Page& page);

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
