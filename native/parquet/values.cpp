#include "values.h"

namespace stoker::parquet {
namespace {

constexpr uint64_t kOnes = 0x0101010101010101;

// What an index in a dictionary of values of N bytes becomes: the value.
template <size_t N>
struct Values {
  static constexpr int64_t kWidth = N;
  const uint8_t* dictionary;

  STOKER_INLINE void copy(uint64_t index, uint8_t* out) const { move<N>(out, dictionary + index * N); }
};

struct WideValues {
  const uint8_t* dictionary;
  int64_t kWidth;

  STOKER_INLINE void copy(uint64_t index, uint8_t* out) const {
    std::memcpy(out, dictionary + static_cast<int64_t>(index) * kWidth, static_cast<size_t>(kWidth));
  }
};

// The index itself.
struct Indices {
  static constexpr int64_t kWidth = 4;

  STOKER_INLINE void copy(uint64_t index, uint8_t* out) const { store(out, static_cast<uint32_t>(index)); }
};

template <typename V>
STOKER_INLINE bool look_up_all(Runs& indices, int64_t num, int bits, const V values, uint64_t num_values,
                               const uint8_t* limit, uint8_t* out) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  while (num > 0) {
    if (!indices.begin_next(bits)) return false;
    const int64_t n = std::min(num, indices.left);
    if (indices.repeats) {
      const uint64_t index = static_cast<uint64_t>(indices.value);
      if (index >= num_values) return false;
      for (int64_t i = 0; i < n; ++i) values.copy(index, out + i * values.kWidth);
    } else {
      const uint8_t* packed = indices.packed;
      // So many of them can be read eight bytes at a time.
      const int64_t room = limit - packed - 8;
      const int64_t safe = room < 0 ? 0 : bits == 0 ? n : std::min(n, (room * 8 + 7) / bits + 1);
      for (int64_t i = 0; i < safe; ++i) {
        const int64_t bit = i * bits;
        const uint64_t index = (load<uint64_t>(packed + (bit >> 3)) >> (bit & 7)) & mask;
        if (index >= num_values) return false;
        values.copy(index, out + i * values.kWidth);
      }
      for (int64_t i = safe; i < n; ++i) {
        const int64_t bit = i * bits;
        const uint8_t* at = packed + (bit >> 3);
        const size_t num_left = static_cast<size_t>(std::min<int64_t>(8, limit - at));
        const uint64_t index = (load_few(at, num_left) >> (bit & 7)) & mask;
        if (index >= num_values) return false;
        values.copy(index, out + i * values.kWidth);
      }
    }
    out += n * values.kWidth;
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

// Of a row without a value, where nulls come without a pattern nothing branches on them.
template <typename T>
STOKER_INLINE void move_if(uint8_t* values, int64_t row, int64_t there, bool has) {
  const T value = load<T>(values + (has ? there : 0) * static_cast<int64_t>(sizeof(T)));
  store(values + row * static_cast<int64_t>(sizeof(T)), has ? value : T{0});
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
      const bool has = valid[--left];
      there -= has;
      move_if<T>(values, left, there, has);
    }
  }
}

}  // namespace

STOKER_VERSIONS
bool look_up(Runs indices, int64_t num, int bits, const uint8_t* dictionary, int64_t num_values, int64_t width,
             const uint8_t* limit, uint8_t* out) {
  const uint64_t most = static_cast<uint64_t>(num_values);
  if (width == 4) return look_up_all(indices, num, bits, Values<4>{dictionary}, most, limit, out);
  if (width == 8) return look_up_all(indices, num, bits, Values<8>{dictionary}, most, limit, out);
  return look_up_all(indices, num, bits, WideValues{dictionary, width}, most, limit, out);
}

STOKER_VERSIONS
bool read_indices(Runs indices, int64_t num, int bits, int64_t num_values, const uint8_t* limit, uint8_t* out) {
  return look_up_all(indices, num, bits, Indices{}, static_cast<uint64_t>(num_values), limit, out);
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
      std::memcpy(to, at, num_bytes);
    at += num_bytes;
    to += num_bytes;
  }
  return to - bytes.data();
}

}  // namespace stoker::parquet
