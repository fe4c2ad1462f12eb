// Gathers rows of a shuffle window's chunks into a batch: their records, and their lists.
//
//   window     chunk 0              chunk 1              a table of where each chunk's arrays lie
//              records ┆ lists      records ┆ lists
//   rows       (slot, row)  1,7  0,1  1,4                found by the order
//   batch      records ┆ 1,7 ┆ 0,1 ┆ 1,4 ┆               one copy a record
//              values  ┆ 1,7 1,7 ┆ 1,4 1,4 1,4 ┆         a field behind the other; where lists lie is found first
//
// What indices and offsets say is not checked here: the order made the ones, and the others lie in chunks whose
// checksums were. That the arrays lie in their chunks is: when a window is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "chunk_map.h"

namespace stoker {

// Ragged fields of a table whose lists are found together: several that lie side by side, in strips, or one alone.
//
//   strips      places  uint32 [N, 1 + F]: where a row's strip begins, in units of 8 bytes, and each list's length
//               values  the strips
//   one field   places  int64 [N + 1]: offsets of the rows' lists
//               inner   int64: where lists hold lists, the offsets of these
//               values  the values
struct ListGroup {
  bool is_strip = false, is_nested = false;
  std::vector<int64_t> value_bytes;                   // of each field [F]
  std::vector<const uint8_t*> places, inner, values;  // of each chunk [K]; `inner` empty where there are none
};

// Where the rows of one table of a window lie; without chunks, what arrays each chunk is to have of it, in this order:
// records, if these have any bytes, and for each group places, inner offsets where it is nested, and values.
struct Table {
  size_t record_bytes = 0;
  std::vector<const uint8_t*> records;  // of each chunk [K]
  std::vector<ListGroup> groups;
  std::vector<size_t> num_rows;  // of each chunk [K]
};

// Where an array lies in its chunk's file.
struct ArrayPlace {
  int64_t offset, num_bytes;
};

// The chunks of a window, in memory for as long as anybody has this, and where their rows lie: those of the samples
// first, then those of what they share by each key. Never changed once it is made.
struct Window {
  std::vector<ChunkMap> chunks;  // [K]
  std::vector<Table> tables;

  // `places` of the arrays of each chunk, table by table [K, A].
  //
  // Throws std::invalid_argument: an array does not lie in its chunk, or has another number of rows than its table.
  Window(std::vector<ChunkMap> chunks, std::span<const ArrayPlace> places, std::span<const Table> tables);
};

// Rows of a batch that lie in one window: slots of its chunks, and rows counted in these.
struct Part {
  const Table* table;
  std::span<const int64_t> slot, row;
};

// All rows of a batch, and where in it each goes: one after the other where `places` is empty.
struct Rows {
  std::span<const Part> parts;
  std::span<const int64_t> places;
  size_t num = 0;
};

// Where the records of a batch go, if they are wanted: `begin` of its first row, and how far apart rows are.
struct RecordTarget {
  uint8_t* begin = nullptr;
  size_t stride = 0;
};

// Where the lists of a batch lie, of one group of fields; `find_lists` makes it, `copy` uses it. `group` stays.
struct FoundLists {
  const ListGroup& group;
  size_t num_fields, num_rows, num_bytes = 0;  // room that the values need, once they are laid out
  std::unique_ptr<const uint8_t*[]> sources;  // first byte of each list, or of the values of a row's inner ones [F, B]
  int64_t* offsets;                           // in values, or in inner lists [F, B + 1]
  std::vector<int64_t> begins;                // where the values of each field begin in their memory [F]
  std::vector<const uint8_t*> inner;          // where the offsets of each row's inner lists begin [B]
  std::vector<int64_t> value_offsets;         // of each row's values, where lists hold lists [B + 1]

  FoundLists(const ListGroup& group, size_t num_rows, int64_t* offsets);

  // Writes the offsets of inner lists, offsets[B] + 1 of them, and finds where values lie.
  void descend(int64_t* inner_offsets);

  // Sets `begins` and `num_bytes`; fields that are not `chosen` take none, and begin at -1.
  void lay_out(std::span<const int64_t> chosen = {});

  // Copies all values to where `lay_out` has put them; behind each field there is room for a line that is written over.
  void copy(uint8_t* out) const;

  // Where the values of each row begin among those of a field, and the end [B + 1].
  const int64_t* borders(size_t field) const {
    return group.is_nested ? value_offsets.data() : offsets + field * (num_rows + 1);
  }
  size_t size_of(size_t field) const { return static_cast<size_t>(borders(field)[num_rows] * group.value_bytes[field]); }
};

void take_records(const Rows& rows, RecordTarget target);

// Finds where the lists of a group lie, and copies records if there is a target: at once, where the processor likes that.
void find_lists(const Rows& rows, size_t group, FoundLists& found, RecordTarget target = {});

// Writes the uint32 at a byte of each record, in the order of the parts, and copies records if there is a target.
void read_runs(const Rows& rows, size_t offset, int64_t* out, RecordTarget target = {});

// Copies lists side by side, exactly. `offsets` in values.
void copy_lists(const uint8_t* const* sources, int64_t value_bytes, std::span<const int64_t> offsets, uint8_t* out);

// Numbers different rows of each batch in the order in which they come first; returns how many there are.
//
//   row     (slot, row) of each sample [B]      sizes     samples of each batch [N]
//   found   the different ones, batch by batch  number    which of its batch's each sample has [B]
//   counts  different ones of each batch [N]
size_t distinct(std::span<const int64_t> slot, std::span<const int64_t> row, std::span<const int64_t> sizes,
                std::span<int64_t> found_slot, std::span<int64_t> found_row, std::span<int32_t> number,
                std::span<int64_t> counts);

// Writes slot and row of each of some consecutive rows, for every unit.
void expand(std::span<const int64_t> slot, std::span<const int64_t> first, std::span<const int64_t> offsets,
            std::span<int64_t> found_slot, std::span<int64_t> found_row);

}  // namespace stoker
