// Values of pages, of which nulls and empty lists have none: from each encoding to one value behind the other.
//
// Source: Apache Parquet format 2.11: Encodings.md (plain, dictionary, byte stream split).
#pragma once

#include <cstdint>
#include <span>

#include "levels.h"

namespace stoker::parquet {

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
// int32, to `lengths`. Returns how many bytes they have; -1 where they are cut short, or have not enough room.
int64_t split_byte_arrays(Body body, int64_t num, uint8_t* lengths, std::span<uint8_t> bytes);

}  // namespace stoker::parquet
