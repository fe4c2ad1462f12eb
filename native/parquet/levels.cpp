#include "levels.h"

namespace stoker::parquet {
namespace {

// Eight bytes: a one in each, 127 in each, and in byte k bit k.
constexpr uint64_t kOnes = 0x0101010101010101, k127s = 0x7F7F7F7F7F7F7F7F, kDiagonal = 0x8040201008040201;

// Lays eight bits out, a byte each: each byte gets all of them, keeps its own, and is one if that is there.
STOKER_INLINE uint64_t eight_bytes(uint64_t bits) { return ((((bits * kOnes) & kDiagonal) + k127s) >> 7) & kOnes; }

// Reads packed numbers of `bits` bits, at most two, one by one, or one value again and again.
struct Levels {
  const uint8_t* packed;
  int64_t bit;
  int width;
  int64_t mask, value;
  bool repeats;

  Levels(const Runs& runs, int bits)
      : packed(runs.packed), bit(runs.bit), width(bits), mask((1 << bits) - 1), value(runs.value),
        repeats(runs.repeats) {}

  STOKER_INLINE int64_t operator[](int64_t i) const {
    if (repeats) return value;
    const int64_t at = bit + i * width;
    return (packed[at >> 3] >> (at & 7)) & mask;
  }
};

}  // namespace

STOKER_VERSIONS
int64_t read_flat_levels(Runs& definition, int64_t num, uint8_t* valid) {
  Runs runs = definition;
  int64_t num_there = 0;
  while (num > 0) {
    if (runs.left == 0 && !runs.begin_next(1)) return -1;
    const int64_t n = std::min(num, runs.left);
    if (runs.repeats) {
      if (runs.value > 1) return -1;
      num_there += runs.value * n;
      if (valid) std::memset(valid, static_cast<int>(runs.value), static_cast<size_t>(n));
    } else {
      int64_t bit = runs.bit;
      for (int64_t i = 0; i < n;) {
        if ((bit & 7) == 0 && n - i >= 8) {
          const uint64_t eight = eight_bytes(runs.packed[bit >> 3]);
          num_there += static_cast<int64_t>((eight * kOnes) >> 56);
          if (valid) store(valid + i, eight);
          bit += 8;
          i += 8;
          continue;
        }
        const int byte = runs.packed[bit >> 3] >> (bit & 7);
        const int64_t here = std::min(8 - (bit & 7), n - i);
        for (int64_t k = 0; k < here; ++k) {
          const int there = (byte >> k) & 1;
          num_there += there;
          if (valid) valid[i + k] = static_cast<uint8_t>(there);
        }
        bit += here;
        i += here;
      }
      runs.bit = bit;
    }
    runs.left -= n;
    if (valid) valid += n;
    num -= n;
  }
  definition = runs;
  return num_there;
}

STOKER_VERSIONS
bool read_list_levels(Runs& repetition, Runs& definition, int64_t num, ListLevels of, std::span<int64_t> offsets,
                      int64_t& num_rows, int64_t& num_values) {
  const int width = of.full > 1 ? 2 : 1;
  const int64_t last = static_cast<int64_t>(offsets.size()) - 1;
  int64_t row = num_rows, value = num_values;
  while (num > 0) {
    if (repetition.left == 0 && !repetition.begin_next(1)) return false;
    if (definition.left == 0 && !definition.begin_next(width)) return false;
    const int64_t n = std::min({num, repetition.left, definition.left});
    if (repetition.repeats && repetition.value == 1 && definition.repeats && definition.value == of.full) {
      // Values that follow others of their list: most are, and come so in runs.
      if (row == 0) return false;
      value += n;
    } else {
      const Levels follows(repetition, 1), levels(definition, width);
      if (follows.repeats && follows.value > 1) return false;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t is_more = follows[i], level = levels[i];
        if (!is_more) {
          if (row >= last) return false;
          offsets[static_cast<size_t>(row++)] = value;
        } else if (row == 0) {
          return false;
        }
        if (level == of.full)
          ++value;
        else if (level != of.empty || is_more)
          return false;
      }
      repetition.bit += n;
      definition.bit += n * width;
    }
    repetition.left -= n;
    definition.left -= n;
    num -= n;
  }
  num_rows = row;
  num_values = value;
  return true;
}

}  // namespace stoker::parquet
