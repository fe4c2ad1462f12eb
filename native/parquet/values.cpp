#include "values.h"

#include <utility>

namespace stoker::parquet {
namespace {

// Eight bytes: a one in each, 127 in each, and in byte k bit k.
constexpr uint64_t kOnes = 0x0101010101010101, k127s = 0x7F7F7F7F7F7F7F7F, kDiagonal = 0x8040201008040201;

// Lays eight bits out, a byte each: each byte gets all of them, keeps its own, and is one if that is there.
STOKER_INLINE uint64_t eight_bytes(uint64_t bits) { return ((((bits * kOnes) & kDiagonal) + k127s) >> 7) & kOnes; }

// Reads `num` numbers of `bits` bits, all below `end`, and has `put` write what each stands for, `width` bytes.
template <typename Put>
STOKER_INLINE bool look_up_all(Runs& indices, int64_t num, int bits, uint64_t end, const uint8_t* limit, uint8_t* out,
                               int64_t width, const Put put) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  while (num > 0) {
    if (!indices.begin_next(bits)) return false;
    const int64_t n = std::min(num, indices.left);
    if (indices.repeats) {
      const uint64_t index = static_cast<uint64_t>(indices.value);
      if (index >= end) return false;
      for (int64_t i = 0; i < n; ++i) put(out + i * width, index, width);
    } else {
      const uint8_t* packed = indices.packed;
      // So many of them can be read eight bytes at a time.
      const int64_t room = limit - packed - 8;
      const int64_t safe = room < 0 ? 0 : bits == 0 ? n : std::min(n, (room * 8 + 7) / bits + 1);
      const auto copy = [&](int64_t first, int64_t last, auto read) __attribute__((always_inline)) {
        for (int64_t i = first; i < last; ++i) {
          const int64_t bit = i * bits;
          const uint64_t index = (read(packed + (bit >> 3)) >> (bit & 7)) & mask;
          if (index >= end) return false;
          put(out + i * width, index, width);
        }
        return true;
      };
      const auto few = [&](const uint8_t* at) { return load_few(at, static_cast<size_t>(std::min<int64_t>(8, limit - at))); };
      if (!copy(0, safe, load<uint64_t>) || !copy(safe, n, few)) return false;
    }
    out += n * width;
    num -= n;
  }
  return true;
}

template <typename T, size_t N>
STOKER_INLINE void join(const uint8_t* streams, int64_t num, uint8_t* out) {
  for (int64_t i = 0; i < num; ++i) {
    T value = 0;
    for (size_t k = 0; k < N; ++k)
      value = static_cast<T>(value | static_cast<T>(T{streams[static_cast<int64_t>(k) * num + i]} << (8 * k)));
    store(out + i * static_cast<int64_t>(N), value);
  }
}

template <typename T>
STOKER_INLINE void spread_numbers(uint8_t* values, int64_t left, int64_t there, const uint8_t* valid) {
  constexpr int64_t width = sizeof(T);
  // As many values as rows are left: all of these have theirs.
  while (there < left) {
    if (left >= 8) {
      const uint64_t eight = load<uint64_t>(valid + left - 8);
      if (eight == kOnes) {
        left -= 8;
        there -= 8;
        for (int64_t k = 7; k >= 0; --k) move<width>(values + (left + k) * width, values + (there + k) * width);
        continue;
      }
      if (eight == 0) {
        left -= 8;
        std::memset(values + left * width, 0, 8 * width);
        continue;
      }
    }
    for (int64_t n = std::min<int64_t>(8, left); n > 0; --n) {
      const bool has = valid[--left];  // where nulls come without a pattern nothing branches on them
      there -= has;
      const T value = load<T>(values + (has ? there : 0) * width);
      store(values + left * width, has ? value : T{0});
    }
  }
}

}  // namespace

STOKER_VERSIONS
int64_t read_flat_levels(Runs runs, int64_t num, uint8_t* valid) {
  int64_t num_there = 0;
  for (int64_t n; num > 0; num -= n) {
    if (runs.left == 0 && !runs.begin_next(1)) return -1;
    n = std::min(num, std::exchange(runs.left, 0));  // of a run that goes on nothing more is wanted
    if (runs.repeats) {
      if (runs.value > 1) return -1;
      num_there += runs.value * n;
      if (valid) std::memset(valid, static_cast<int>(runs.value), static_cast<size_t>(n));
    } else {
      for (int64_t i = 0; i < n; i += 8) {
        const int64_t here = std::min<int64_t>(8, n - i);
        const uint64_t flags = eight_bytes(runs.packed[i >> 3] & (0xFFu >> (8 - here)));
        num_there += static_cast<int64_t>((flags * kOnes) >> 56);
        if (valid && here == 8) store(valid + i, flags);
        else if (valid) std::memcpy(valid + i, &flags, static_cast<size_t>(here));
      }
    }
    if (valid) valid += n;
  }
  return num_there;
}

STOKER_VERSIONS
bool read_list_levels(Runs repetition, Runs definition, int64_t num, ListLevels of, std::span<int64_t> offsets,
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
      if (repetition.repeats && repetition.value > 1) return false;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t is_more = repetition.level(i, 1), level = definition.level(i, width);
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

STOKER_VERSIONS
bool look_up(Runs indices, int64_t num, int bits, const uint8_t* dictionary, int64_t num_values, int64_t width,
             const uint8_t* limit, uint8_t* out) {
  const uint64_t end = static_cast<uint64_t>(num_values);
  const auto put = [=](uint8_t* to, uint64_t index, int64_t size) __attribute__((always_inline)) {
    __builtin_memcpy(to, dictionary + static_cast<int64_t>(index) * size, static_cast<size_t>(size));
  };
  if (width == 4) return look_up_all(indices, num, bits, end, limit, out, 4, put);
  if (width == 8) return look_up_all(indices, num, bits, end, limit, out, 8, put);
  return look_up_all(indices, num, bits, end, limit, out, width, put);
}

STOKER_VERSIONS
bool read_indices(Runs indices, int64_t num, int bits, int64_t num_values, const uint8_t* limit, uint8_t* out) {
  const auto put = [](uint8_t* to, uint64_t index, int64_t) __attribute__((always_inline)) {
    store(to, static_cast<uint32_t>(index));
  };
  return look_up_all(indices, num, bits, static_cast<uint64_t>(num_values), limit, out, 4, put);
}

STOKER_VERSIONS
void join_streams(const uint8_t* streams, int64_t num, int64_t width, uint8_t* out) {
  if (width == 4) return join<uint32_t, 4>(streams, num, out);
  if (width == 8) return join<uint64_t, 8>(streams, num, out);
  for (int64_t k = 0; k < width; ++k)
    for (int64_t i = 0; i < num; ++i) out[i * width + k] = streams[k * num + i];
}

STOKER_VERSIONS
void spread(uint8_t* values, int64_t num, int64_t num_there, const uint8_t* valid, int64_t width) {
  if (width == 4) return spread_numbers<uint32_t>(values, num, num_there, valid);
  if (width == 8) return spread_numbers<uint64_t>(values, num, num_there, valid);
  if (width == 1) return spread_numbers<uint8_t>(values, num, num_there, valid);
  const size_t size = static_cast<size_t>(width);
  for (int64_t row = num, there = num_there; there < row;) {
    uint8_t* to = values + --row * width;
    if (valid[row])
      std::memmove(to, values + --there * width, size);
    else
      std::memset(to, 0, size);
  }
}

int64_t split_byte_arrays(Body body, int64_t num, uint8_t* lengths, std::span<uint8_t> bytes) {
  uint8_t *to = bytes.data(), *const end = to + bytes.size();
  const uint8_t* at = body.at;
  for (int64_t i = 0; i < num; ++i) {
    if (body.end - at < 4) return -1;
    const uint32_t num_bytes = load<uint32_t>(at);
    at += 4;
    if (num_bytes > body.end - at || num_bytes > end - to) return -1;
    store(lengths + i * 4, num_bytes);
    // Short strings by one move: a call costs more than they do. What lies behind them is written over.
    if (num_bytes <= 16 && body.limit - at >= 16 && end - to >= 16)
      move<16>(to, at);
    else if (num_bytes)
      std::memmove(to, at, num_bytes);
    at += num_bytes;
    to += num_bytes;
  }
  return to - bytes.data();
}

int64_t longest_byte_array(std::span<const uint8_t> bytes) {
  size_t longest = 0;
  for (auto left = bytes; left.size() >= 4;) {
    const size_t num_bytes = load<uint32_t>(left.data());
    left = left.subspan(4);
    if (num_bytes > left.size()) return static_cast<int64_t>(bytes.size());
    longest = std::max(longest, num_bytes);
    left = left.subspan(num_bytes);
  }
  return static_cast<int64_t>(longest);
}

int64_t sum_of_deltas(std::span<const uint8_t> bytes) {
  constexpr int64_t most = 0x7FFFFFFF, most_in_block = 1 << 16;
  const auto signed_of = [](uint64_t n) { return static_cast<int64_t>((n >> 1) ^ (~(n & 1) + 1)); };
  const uint8_t *at = bytes.data(), *const end = at + bytes.size();
  uint64_t block, num_parts, num, first;
  for (uint64_t* number : {&block, &num_parts, &num, &first})
    if (!read_varint(at, end, *number)) return -1;
  int64_t value = signed_of(first), left = static_cast<int64_t>(num) - 1;
  if (!num_parts || num_parts > block || block > most_in_block || left >= most || value < 0 || value > most) return -1;
  int64_t sum = left < 0 ? 0 : value;
  const int64_t part = static_cast<int64_t>(block / num_parts);
  while (left > 0) {
    uint64_t least;
    if (!read_varint(at, end, least) || end - at < static_cast<int64_t>(num_parts)) return -1;
    const uint8_t* widths = at;
    at += num_parts;
    for (uint64_t p = 0; p < num_parts && left > 0; ++p) {
      const int64_t width = widths[p], n = std::min(left, part), num_bytes = (part * width + 7) / 8;
      if (width > 32 || num_bytes > end - at) return -1;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t bit = i * width;
        const uint8_t* here = at + (bit >> 3);
        const uint64_t few = load_few(here, static_cast<size_t>(std::min<int64_t>(8, end - here)));
        value += signed_of(least) + static_cast<int64_t>((few >> (bit & 7)) & ((uint64_t{1} << width) - 1));
        if (value < 0 || value > most) return -1;
        sum += value;
        if (width == 0 && signed_of(least) == 0) {  // a page of a few bytes may have any number of them
          sum += value * (n - 1);
          break;
        }
      }
      at += num_bytes;
      left -= n;
    }
  }
  return sum;
}

}  // namespace stoker::parquet
