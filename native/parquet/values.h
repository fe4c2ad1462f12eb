// Levels, which say what is null and where lists begin, and values, of which nulls and empty lists have none: from each
// encoding to one behind the other.
//
// Source: Apache Parquet format 2.11: Encodings.md (RLE and bit-packing hybrid, plain, dictionary, delta, byte stream split);
// Dremel's levels as in its README.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "../bytes.h"

namespace stoker::parquet {

// Numbers of `width` bits, at most 32, in runs: of one value that is repeated, or of packed ones.
struct Runs {
  const uint8_t* next = nullptr;  // where the next run begins
  const uint8_t* end = nullptr;   // where all of them end
  int64_t left = 0;               // of this run
  bool repeats = false;
  int64_t value = 0;              // what is repeated
  const uint8_t* packed = nullptr;
  int64_t bit = 0;                // of the next number, from `packed` on

  Runs() = default;
  Runs(const uint8_t* begin, const uint8_t* stop) : next(begin), end(stop) {}

  // One run of packed numbers, without a head.
  static Runs of_packed(const uint8_t* bits, int64_t num) {
    Runs runs(bits, bits);
    runs.packed = bits;
    runs.left = num;
    return runs;
  }

  // Begins the next run; false where there is none, or it is cut short.
  STOKER_INLINE bool begin_next(int width) {
    uint64_t header;
    if (!read_varint(next, end, header)) return false;
    const int64_t count = static_cast<int64_t>(header >> 1), room = end - next;
    repeats = !(header & 1);
    int64_t num_bytes;
    if (repeats) {
      num_bytes = (width + 7) / 8;
      if (num_bytes > room) return false;
      value = static_cast<int64_t>(load_few(next, static_cast<size_t>(num_bytes)));
      left = count;
    } else {
      num_bytes = count * width;
      left = count * 8;
      packed = next;
      bit = 0;
      if (num_bytes > room) {
        // The last run of a page may lack the bits that pad its last group: fewer than a byte a bit of its numbers.
        if (num_bytes - room >= width) return false;
        left = room * 8 / width;
        num_bytes = room;
      }
    }
    next += num_bytes;
    return left > 0;
  }

  // Reads the i-th of the numbers that are left of this run, of at most two bits.
  STOKER_INLINE int64_t level(int64_t i, int width) const {
    const int64_t at = bit + i * width;
    return repeats ? value : (packed[at >> 3] >> (at & 7)) & ((1 << width) - 1);
  }
};

// Counts how many of `num` rows have a value, from all levels, of one bit, and says so of each in `valid` where that is
// not empty; -1 where levels are cut short.
int64_t read_flat_levels(Runs definition, int64_t num, uint8_t* valid);

// What the levels of lists say: definition levels of a value and of an empty list (-1 where there is none).
struct ListLevels {
  int full, empty;
};

// Reads the levels of `num` entries, each a value or an empty list: fills `offsets` from `row` on, where lists begin,
// and counts rows and values. False where levels are cut short, a value or list is null, or lists are too many.
bool read_list_levels(Runs repetition, Runs definition, int64_t num, ListLevels levels, std::span<int64_t> offsets,
                      int64_t& row, int64_t& value);

// Bytes of a page, of which some more may be read than are its own.
struct Body {
  const uint8_t* at;
  const uint8_t* end;
  const uint8_t* limit;  // up to here may be read

  int64_t size() const { return end - at; }
};

// Copies `num` values of `width` bytes from a dictionary of `num_values` values by their indices, in runs of `bits` bits,
// to `out`, of which up to `limit` may be read. False where indices are cut short or wrong.
bool look_up(Runs indices, int64_t num, int bits, const uint8_t* dictionary, int64_t num_values, int64_t width,
             const uint8_t* limit, uint8_t* out);

// Writes the indices themselves, four bytes each.
bool read_indices(Runs indices, int64_t num, int bits, int64_t num_values, const uint8_t* limit, uint8_t* out);

// Puts values together of which all first bytes come first, then all second ones, and so on.
void join_streams(const uint8_t* streams, int64_t num, int64_t width, uint8_t* out);

// Moves `num_there` values that lie side by side to those of `num` rows that have one; zeros lie at the others.
void spread(uint8_t* values, int64_t num, int64_t num_there, const uint8_t* valid, int64_t width);

// Copies `num` byte arrays, each of which stands behind its length, one behind the other to `bytes`, and their lengths,
// int32, to `lengths`. Returns how many bytes they have; -1 where they are cut short, or have not enough room. The page
// may lie in `bytes` itself, from its byte 16 on.
int64_t split_byte_arrays(Body body, int64_t num, uint8_t* lengths, std::span<uint8_t> bytes);

// Returns how many bytes the longest of byte arrays has that stand one behind the other; all, where one is cut short.
int64_t longest_byte_array(std::span<const uint8_t> bytes);

// Returns the sum of numbers that are encoded by their differences, such as what byte arrays have in common with the one
// before; -1 where these are no lengths, or cut short.
int64_t sum_of_deltas(std::span<const uint8_t> bytes);

}  // namespace stoker::parquet
