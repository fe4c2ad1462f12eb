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

// Where the values of pages go.
struct Target {
  std::span<uint8_t> bytes;    // of the dictionary; of a binary column, of strings that come without one
  std::span<uint8_t> values;   // one behind the other, of each row of a flat column
  std::span<uint8_t> valid;    // of each row, whether it has a value: filled once one has none
  std::span<int64_t> offsets;  // of lists
};

// How far pages are decoded.
struct Progress {
  int64_t rows = 0;
  int64_t values = 0;  // nulls of a flat column among them
  int64_t nulls = 0;
  int64_t dictionary_values = 0;
  int64_t string_bytes = 0;  // of strings that came without a dictionary
};

// Decodes a page behind what is decoded already; false where it is not as it should be, or not known.
bool decode_page(const Page& page, std::span<const uint8_t> stored, Codec codec, const Column& column,
                 const Target& target, Progress& progress);

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
    int64_t rows, values, nulls;
    int64_t indices;  // of a binary column: so many of the first values are indices in the dictionary
    int64_t values_at, valid_at, offsets_at, strings_at, string_bytes;
    // Strings of the dictionary, where it is one of the pages.
    int64_t dictionary_values, dictionary_offsets_at, dictionary_at, dictionary_bytes;
  };

  ColumnReader(const Column& column, Codec codec, const Promise& promise);

  // Finds the pages that lie in `content` as a whole, which stays where it is until they are decoded. Returns where the
  // last one ends; -1 where one is not what its checksum or the footer says.
  int64_t scan(std::span<const uint8_t> content);

  // Entries of all pages found so far: values, nulls and empty lists.
  int64_t num_entries() const { return num_entries_; }

  // Whether the pages found so far are likely to have so many rows, from row `first` of those that are decoded on.
  bool has(int64_t first, int64_t num_rows) const;

  // Chooses the pages that are decoded next. Rows before `first` are left behind. Returns how many bytes of memory are
  // needed; -1 where there are more rows than the footer promises.
  int64_t plan(int64_t first, int64_t num_rows);

  // Decodes them into `memory`, of as many bytes; false where one is wrong, or not known. That of the call before may go.
  bool decode(std::span<uint8_t> memory);

  // What lies in the memory that begins at `base` of another one. Of lists the last one may go on in the next page: it
  // is left out until that is known.
  Rows rows(int64_t base) const;

  bool has_pages() const { return next_ < pages_.size(); }

 private:
  struct StoredPage {
    Page page;
    std::span<const uint8_t> stored;
  };
  struct Bytes {
    std::unique_ptr<uint8_t[]> data;
    size_t size = 0;
    void resize(size_t num) {
      if (num > size) data.reset(new uint8_t[num]);
      size = num;
    }
    std::span<uint8_t> span() { return {data.get(), size}; }
  };

  size_t stop_for(int64_t first, int64_t num_rows) const;
  void keep_rest(std::span<uint8_t> memory);
  bool decode_chosen(std::span<uint8_t> memory);
  bool read_strings_of_dictionary(const StoredPage& page, std::span<uint8_t> memory);
  bool finish(std::span<uint8_t> memory);
  bool finish_lists(std::span<uint8_t> memory, int64_t num_rows);
  bool finish_strings(std::span<uint8_t> memory);

  Column column_;
  Codec codec_;
  Promise promise_;
  std::vector<StoredPage> pages_;
  size_t next_ = 0, stop_ = 0;
  int64_t num_entries_ = 0, num_bytes_ = 0;
  int64_t rows_left_;  // of the row group, from the first one that is decoded on
  int64_t first_ = 0;
  Rows layout_{}, rows_{};
  Progress progress_;
  int64_t indices_ = 0;
  Target target_{};
  std::vector<uint8_t> dictionary_;  // of numbers
  Bytes wide_, valid_;  // values that are not stored alike; of each row whether it has a value, a byte each
  std::vector<int64_t> offsets_;
};

}  // namespace stoker::parquet
