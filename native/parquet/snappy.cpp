#include "snappy.h"

#include "../bytes.h"

namespace stoker::parquet {
namespace {

// What is copied at once where there is room for more than is asked for.
constexpr ptrdiff_t kStep = 8;
// Lengths of literals from here on stand in the bytes behind the tag.
constexpr uint64_t kShort = 60;

}  // namespace

STOKER_VERSIONS
bool unsnap(std::span<const uint8_t> packed, std::span<uint8_t> out) {
  const uint8_t *source = packed.data(), *const source_end = source + packed.size();
  uint64_t promised;
  if (!read_varint(source, source_end, promised) || promised != out.size()) return false;
  uint8_t *const begin = out.data(), *to = begin, *const end = begin + out.size();
  while (source < source_end) {
    const uint64_t tag = *source++;
    const uint64_t kind = tag & 3;
    if (kind == 0) {
      uint64_t more = tag >> 2;
      if (more >= kShort) {
        const ptrdiff_t num = static_cast<ptrdiff_t>(more - kShort + 1);
        if (source_end - source < num) return false;
        more = load_few(source, static_cast<size_t>(num));
        source += num;
      }
      const ptrdiff_t length = static_cast<ptrdiff_t>(more) + 1;
      if (length > source_end - source || length > end - to) return false;
      if (length <= 2 * kStep && source_end - source >= 2 * kStep && end - to >= 2 * kStep)
        move<2 * kStep>(to, source);
      else
        std::memcpy(to, source, static_cast<size_t>(length));
      source += length;
      to += length;
      continue;
    }
    ptrdiff_t length, distance;
    if (kind == 1) {
      if (source >= source_end) return false;
      length = static_cast<ptrdiff_t>((tag >> 2) & 7) + 4;
      distance = static_cast<ptrdiff_t>((tag >> 5) << 8 | *source++);
    } else {
      length = static_cast<ptrdiff_t>(tag >> 2) + 1;
      const ptrdiff_t num = kind == 2 ? 2 : 4;
      if (source_end - source < num) return false;
      distance = kind == 2 ? load<uint16_t>(source) : static_cast<ptrdiff_t>(load<uint32_t>(source));
      source += num;
    }
    if (distance == 0 || distance > to - begin || length > end - to) return false;
    const uint8_t* back = to - distance;
    uint8_t* const stop = to + length;
    if (end - to >= length + 2 * kStep) {
      // What is nearer than a step repeats itself: twice as much of it each time, until it is as far as that.
      while (to - back < kStep && to < stop) {
        move<kStep>(to, back);
        to += to - back;
      }
      for (; to < stop; to += kStep, back += kStep) move<kStep>(to, back);
    } else {
      while (to < stop) *to++ = *back++;
    }
    to = stop;
  }
  return to == end;
}

}  // namespace stoker::parquet
