// Packing a chunk: from one array a column to what a gather finds at one place, a sample's values side by side.
//
//     id       | 7 8 9 ... |                          clicks   | 1 1 1 | 2 | 3 3 |
//     price    | a b c ... |                          words    | x | y y | |
//     records  | 7 a | 8 b | 9 c | ...                lists    | 1 1 1 x | 2 y y | 3 3 |
//
// Columns may lie in several arrays, one for each batch of rows that was decoded: they are packed from where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stoker {

// A column of some rows, and where the packer puts it.
struct Column {
  const std::byte* values;
  size_t row_bytes;                   // of one row of it
  bool is_signed;                     // where its integers are widened
  size_t offset = 0, item_bytes = 0;  // in the record; of one number there
};

// Packs the fixed-width fields of samples into records. Fields are added one after the other, each by pieces in the
// order of the rows; each piece has one column, or several that lie side by side in the record.
class RecordPacker {
 public:
  explicit RecordPacker(size_t record_bytes) : record_bytes_(record_bytes) {}
  RecordPacker(const RecordPacker&) = delete;

  // Adds a field: where it lies in the record, and the bytes of one number of it.
  void add_field(size_t offset, size_t item_bytes) { fields_.push_back({offset, item_bytes, {}}); }
  // Adds the next rows of the last field: values as they are in the record, or integers that are widened to eight bytes.
  // Throws std::invalid_argument where a column is neither, or does not fit a record.
  void add_piece(size_t num_rows, std::vector<Column> columns);

  // Lays rows [start, stop) at the beginning of `block`; bytes between fields are left as they are.
  // Throws std::invalid_argument where there are not so many rows, or no room for them.
  void pack(std::span<std::byte> block, size_t start, size_t stop) const;

 private:
  struct Piece {
    size_t start, stop;
    std::vector<Column> columns;
  };
  struct Field {
    size_t offset, item_bytes;
    std::vector<Piece> pieces;
  };

  size_t record_bytes_;
  std::vector<Field> fields_;
};

// Packs the lists of samples, of several fields, side by side.
class ListPacker {
 public:
  using Values = std::span<const std::byte>;

  ListPacker() = default;
  ListPacker(const ListPacker&) = delete;

  // Adds a field: where the list of each row begins, counted in values, and how large one is.
  void add_field(std::span<const int64_t> offsets, size_t value_bytes) { fields_.push_back({offsets, value_bytes, {}}); }
  // Adds values of the last field, behind those it has; no list lies in two pieces.
  void add_piece(Values values) { fields_.back().pieces.push_back(values); }

  // Lays the lists of rows [start, stop) at the beginning of `block`, zeros behind them.
  // `places` has, for each row, where its lists begin, in units of 8 bytes, and how many values of each field it has.
  // Throws std::invalid_argument where there are not so many rows, or no room for them.
  void pack(std::span<std::byte> block, std::span<const uint32_t> places, size_t start, size_t stop) const;

 private:
  struct Field {
    std::span<const int64_t> offsets;
    size_t value_bytes;
    std::vector<Values> pieces;
  };

  std::vector<Field> fields_;
};

// Marks the rows whose bytes differ from those of the row before. Row i is data[starts[i], starts[i + 1]).
// Rows that are marked already are not looked at, nor is the first. Throws std::invalid_argument where a row is not in data.
void mark_changes(std::span<const uint8_t> data, std::span<const int64_t> starts, std::span<bool> changes);

// Writes each binary16, given by its bits, as a binary32; both have the same number of values. A tenth of the time that
// NumPy takes, which converts them one by one.
//
// Source: IEEE 754-2019, 3.4: sign, 5 or 8 bits of exponent, 10 or 23 of fraction, of binary16 and binary32.
void widen_float16(std::span<const uint16_t> halves, std::span<float> singles);

}  // namespace stoker
