// Numbers in bytes, the lowest byte first, wherever they lie.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "processor.h"

namespace stoker {

static_assert(std::endian::native == std::endian::little, "Parquet's and Arrow's numbers have their lowest byte first");

template <typename T>
STOKER_INLINE T load(const uint8_t* at) {
  T value;
  __builtin_memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
STOKER_INLINE void store(uint8_t* at, T value) {
  __builtin_memcpy(at, &value, sizeof(T));
}

// Copies N bytes by way of a register, so that the two may overlap.
template <size_t N>
STOKER_INLINE void move(uint8_t* to, const uint8_t* from) {
  struct {
    uint8_t bytes[N];
  } value;
  __builtin_memcpy(&value, from, N);
  __builtin_memcpy(to, &value, N);
}

// Reads a number of at most eight bytes.
STOKER_INLINE uint64_t load_few(const uint8_t* at, size_t num_bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < num_bytes; ++i) number |= uint64_t{at[i]} << (8 * i);
  return number;
}

// Reads a number of at most five bytes, seven bits in each, and moves `at` behind it; false where it is longer, or cut
// short at `end`.
STOKER_INLINE bool read_varint(const uint8_t*& at, const uint8_t* end, uint64_t& number) {
  number = 0;
  for (int shift = 0; shift < 35 && at < end; shift += 7) {
    const uint8_t byte = *at++;
    number |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return true;
  }
  return false;
}

}  // namespace stoker
