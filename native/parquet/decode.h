// Pages to values: column chunks of numbers, of lists of numbers, and of strings.
//
// Whatever a page says is checked before it is believed. What is not known here, or wrong, is given back, and pyarrow
// decodes it, or says what is wrong.
//
// Source: Apache Parquet format 2.11: parquet.thrift, Encodings.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codecs.h"
#include "headers.h"

namespace stoker::parquet {

// What there is to know of a column. Values of a binary one are int32: indices in a dictionary, or lengths of strings.
struct Column {
  int64_t width;  // bytes of one value; one where it is a bit
  int full;       // definition level of a value: 0 where none may be null
  int empty;      // definition level of an empty list; -1 where there is none
  bool is_list, is_bit, is_binary;

  bool has_nulls() const { return full && !is_list; }
};

// Where values go.
struct Target {
  std::span<uint8_t> bytes;    // of the dictionary; of a binary column, of strings that come without one
  std::span<uint8_t> values;   // one behind the other, of each row of a flat column
  std::span<uint8_t> valid;    // of each row, whether it has a value: filled once one has none
  std::span<int64_t> offsets;  // of lists
};

// How far a column chunk is decoded.
struct Progress {
  int64_t rows = 0;
  int64_t values = 0;  // nulls of a flat column among them
  int64_t nulls = 0;
  int64_t dictionary_values = 0;
  int64_t string_bytes = 0;  // of strings that came without a dictionary
};

// Decodes pages, in their order, behind what is decoded already; false where one is not as it should be, or not known.
bool decode_pages(std::span<const Page> pages, std::span<const uint8_t> content, Codec codec, const Column& column,
                  const Target& target, Progress& progress);

// Decodes a page that was decompressed before: `content` is all of it.
bool decode_plain_page(const Page& page, std::span<const uint8_t> content, const Column& column, const Target& target,
                       Progress& progress);

// Splits a page of byte arrays, the dictionary of a binary column: into as many strings as `lengths` has room for.
// Returns how many bytes they have; -1 where that is not what the page has.
int64_t split_page(const Page& page, std::span<const uint8_t> content, Codec codec, std::span<int32_t> lengths,
                   std::span<uint8_t> bytes);

// Small column chunks of a row group, which lie one behind the other: all are decoded at once.
class ColumnChunks {
 public:
  // Where a column's part begins in each span of the target of all.
  struct Part {
    int64_t bytes, values, valid, offsets;
  };
  struct Chunk {
    size_t first_page, last_page;
    int64_t bytes, end;  // how long it is, and where its last page ends
    PageTotals totals;
  };
  // What came of a column: whether it was decoded, and where it lies.
  struct Outcome {
    bool is_done;
    Progress progress;
    Part begin;
  };

  // Finds the pages; `borders` says where each column chunk begins, and the last one ends, within `content`.
  ColumnChunks(std::span<const uint8_t> content, std::span<const int64_t> borders);

  // Lays the columns out in the target of all; false where one has other values than the footer promises, checksums,
  // or too many of anything. `num_values` and `most_bytes` of each, as the footer has them.
  bool lay_out(std::vector<Column> columns, int64_t num_rows, std::span<const int64_t> num_values,
               std::span<const int64_t> most_bytes);

  // What the target of all must have room for.
  Part size() const { return parts_.back(); }

  std::vector<Outcome> decode(Codec codec, const Target& target) const;

 private:
  std::span<const uint8_t> content_;
  std::vector<Page> pages_;
  std::vector<Chunk> chunks_;
  std::vector<Column> columns_;
  std::vector<Part> parts_;
  int64_t num_rows_ = 0;
};

}  // namespace stoker::parquet
