#include "values.h"

namespace stoker::parquet {
namespace {

constexpr uint64_t kOnes = 0x0101010101010101;

// What a place in a dictionary of values of N bytes becomes: the value.
template <size_t N>
struct Words {
  static constexpr int64_t kWidth = N;
  const uint8_t* dictionary;

  STOKER_INLINE void copy(uint64_t place, uint8_t* out) const { move<N>(out, dictionary + place * N); }
};

struct WideWords {
  const uint8_t* dictionary;
  int64_t kWidth;

  STOKER_INLINE void copy(uint64_t place, uint8_t* out) const {
    std::memcpy(out, dictionary + static_cast<int64_t>(place) * kWidth, static_cast<size_t>(kWidth));
  }
};

// The place itself.
struct Places {
  static constexpr int64_t kWidth = 4;

  STOKER_INLINE void copy(uint64_t place, uint8_t* out) const { store(out, static_cast<uint32_t>(place)); }
};

template <typename W>
STOKER_INLINE bool look_up_all(Runs& places, int64_t num, int bits, const W words, uint64_t num_words,
                               const uint8_t* limit, uint8_t* out) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  while (num > 0) {
    if (!places.begin_next(bits)) return false;
    const int64_t n = std::min(num, places.left);
    if (places.repeats) {
      const uint64_t place = static_cast<uint64_t>(places.value);
      if (place >= num_words) return false;
      for (int64_t i = 0; i < n; ++i) words.copy(place, out + i * words.kWidth);
    } else {
      const uint8_t* packed = places.packed;
      // So many of them can be read eight bytes at a time.
      const int64_t room = limit - packed - 8;
      const int64_t safe = room < 0 ? 0 : bits == 0 ? n : std::min(n, (room * 8 + 7) / bits + 1);
      for (int64_t i = 0; i < safe; ++i) {
        const int64_t bit = i * bits;
        const uint64_t place = (load<uint64_t>(packed + (bit >> 3)) >> (bit & 7)) & mask;
        if (place >= num_words) return false;
        words.copy(place, out + i * words.kWidth);
      }
      for (int64_t i = safe; i < n; ++i) {
        const int64_t bit = i * bits;
        const uint8_t* at = packed + (bit >> 3);
        const size_t num_left = static_cast<size_t>(std::min<int64_t>(8, limit - at));
        const uint64_t place = (load_few(at, num_left) >> (bit & 7)) & mask;
        if (place >= num_words) return false;
        words.copy(place, out + i * words.kWidth);
      }
    }
    out += n * words.kWidth;
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
bool look_up(Runs places, int64_t num, int bits, const uint8_t* dictionary, int64_t num_words, int64_t width,
             const uint8_t* limit, uint8_t* out) {
  const uint64_t most = static_cast<uint64_t>(num_words);
  if (width == 4) return look_up_all(places, num, bits, Words<4>{dictionary}, most, limit, out);
  if (width == 8) return look_up_all(places, num, bits, Words<8>{dictionary}, most, limit, out);
  return look_up_all(places, num, bits, WideWords{dictionary, width}, most, limit, out);
}

STOKER_VERSIONS
bool take_places(Runs places, int64_t num, int bits, int64_t num_words, const uint8_t* limit, uint8_t* out) {
  return look_up_all(places, num, bits, Places{}, static_cast<uint64_t>(num_words), limit, out);
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

int64_t take_words_apart(Body body, int64_t num, uint8_t* lengths, std::span<uint8_t> words) {
  uint8_t *to = words.data(), *const end = to + words.size();
  const uint8_t* at = body.at;
  for (int64_t i = 0; i < num; ++i) {
    if (body.end - at < 4) return -1;
    const uint32_t num_bytes = load<uint32_t>(at);
    at += 4;
    if (num_bytes > body.end - at || num_bytes > end - to) return -1;
    store(lengths + i * 4, num_bytes);
    // Short words by one move: a call costs more than they do. What lies behind them is written over.
    if (num_bytes <= 16 && body.limit - at >= 16 && end - to >= 16)
      move<16>(to, at);
    else if (num_bytes)
      std::memcpy(to, at, num_bytes);
    at += num_bytes;
    to += num_bytes;
  }
  return to - words.data();
}

}  // namespace stoker::parquet
