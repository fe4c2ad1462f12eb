// Pages to values: column chunks of numbers, of lists of numbers, and of strings, as Arrow lays them out.
//
// Whatever a page says is checked before it is believed. What is not known here, or wrong, is given back, and pyarrow
// decodes it, or says what is wrong.
//
// Source: Apache Parquet format 2.11: parquet.thrift, Encodings.md. Arrow columnar format 1.5.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codecs.h"
#include "metadata.h"
#include "values.h"

namespace stoker::parquet {

// What there is to know of a column.
struct Column {
  int64_t width;        // bytes of one value in a page; one where it is a bit; four of an index or a length of a string
  int full;             // definition level of a value: 0 where none may be null
  int empty;            // definition level of an empty list; -1 where there is none
  bool is_list, is_bit, is_binary;
  int64_t value_bytes;  // bytes of one value in Arrow: as many as in a page, or the lower ones of them
  bool is_large;        // whether Arrow's offsets of lists or strings have 64 bits
  int64_t list_size;    // of every list; -1 where their lengths differ

  bool has_nulls() const { return full && !is_list; }
  bool is_stored_alike() const { return !is_bit && value_bytes == width; }
};

// What a footer says of a column chunk.
struct Promise {
  int64_t num_rows, num_values;
  int64_t most_bytes;        // more than any page has before it is compressed; than all pages of strings have
  int64_t most_page_values;  // a page of more values is given back
};

// A column chunk that is decoded as a whole, or some rows at a time while it is read:
//
//   scan      ┆ page ┆ page ┆ page ┆ pa        finds the pages in what was read
//   plan      ┆ ▒▒▒▒ ┆ ▒▒▒▒ ┆                  chooses those that make the next rows: how much memory is needed
//   decode      │·······│····                  lays them out there, behind rows of the page before that are left
class ColumnReader {
 public:
  // What was decoded, and where in the memory it begins.
  struct Rows {
    int64_t rows, values, nulls;  // values: nulls of a flat column among them
    int64_t indices;  // of a binary column: so many of the first values are indices in the dictionary
    int64_t values_at, valid_at, offsets_at, strings_at, string_bytes;
    // Strings of the dictionary, where it is one of the pages.
    int64_t dictionary_values, dictionary_offsets_at, dictionary_at, dictionary_bytes;
  };

  ColumnReader(const Column& column, Codec codec, const Promise& promise)
      : column_(column), codec_(codec), promise_(promise), rows_left_(promise.num_rows) {}

  // Finds the pages that lie in `content` as a whole, which stays where it is until they are decoded. Returns where the
  // last one ends; -1 where one is not what its checksum or the footer says.
  int64_t scan(std::span<const uint8_t> content);

  // Entries of all pages found so far: values, nulls and empty lists.
  int64_t num_entries() const { return num_entries_; }

  // Whether the pages found so far are likely to have so many rows, from row `first` of those that are decoded on.
  bool has(int64_t first, int64_t num_rows) const;
  bool has_pages() const { return !pages_.empty(); }

  // Chooses the pages that are decoded next, behind byte `at` of the memory, a multiple of 64. Rows before `first` are
  // left behind. Returns where they end in the memory; -1 where there are more rows than the footer promises.
  int64_t plan(int64_t first, int64_t num_rows, int64_t at);

  // Decodes them; false where one is wrong, or not known. The memory of the call before may go afterwards. Of lists the
  // last one may go on in the next page: it is left out until that is known.
  bool decode(std::span<uint8_t> memory);
  const Rows& rows() const { return rows_; }

 private:
  size_t stop_for(int64_t first, int64_t num_rows) const;
  void keep_rest(std::span<uint8_t> memory);
  bool decode_page(const Page& page, std::span<uint8_t> memory);
  bool read_dictionary(const Page& page, const Body& body, std::span<uint8_t> memory);
  int64_t read_validity(const Runs& levels, int64_t num);
  bool read_values(const Page& page, int64_t num, Body body, uint8_t* out);
  bool finish(std::span<uint8_t> memory);

  Column column_;
  Codec codec_;
  Promise promise_;
  std::vector<Page> pages_;  // that are not decoded yet
  size_t stop_ = 0;          // of those that are decoded next
  int64_t num_entries_ = 0, num_bytes_ = 0;
  int64_t rows_left_;  // of the row group, from the first one that is decoded on
  int64_t first_ = 0;  // row from which on they stay
  std::vector<uint8_t> dictionary_;  // of numbers
  int64_t num_words_ = 0;            // of any dictionary

  Rows layout_{};  // how much there is room for, and where
  Rows rows_{};
  // What is decoded and may go on: the last list among it, and rows that nobody has taken.
  int64_t num_rows_ = 0, num_values_ = 0, num_nulls_ = 0, num_indices_ = 0, num_string_bytes_ = 0;
  std::span<uint8_t> values_, strings_;
  std::unique_ptr<uint8_t[]> wide_;  // values that are not stored alike
  std::vector<uint8_t> valid_;       // of each row whether it has a value, once one has none
  std::vector<int64_t> offsets_;     // of lists
};

}  // namespace stoker::parquet
