#include "pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "processor.h"

namespace stoker {
namespace {

// Rows of one column before the next column: their part of the records stays in the first-level cache, and the next
// cache lines of the column are on their way. 70 columns, records of 640 bytes: 16 to 256 rows 13 GB/s, 512 rows 6.
constexpr size_t kRows = 64;

// What lists begin at multiples of, and are counted in: the widest number there is.
constexpr size_t kListUnit = 8;

template <typename From, typename To>
STOKER_INLINE void move_one(std::byte* to, const std::byte* from) {
  From value;
  std::memcpy(&value, from, sizeof(From));
  const To wide = static_cast<To>(value);
  std::memcpy(to, &wide, sizeof(To));
}

template <typename From, typename To = From>
STOKER_INLINE void move(std::byte* to, size_t step, const std::byte* from, size_t num) {
  size_t i = 0;
  for (; i + 4 <= num; i += 4)  // side by side, which compilers do not do by themselves
    for (size_t k = i; k < i + 4; ++k) move_one<From, To>(to + k * step, from + k * sizeof(From));
  for (; i < num; ++i) move_one<From, To>(to + i * step, from + i * sizeof(From));
}

STOKER_VERSIONS
void pack_rows(std::span<const Column> columns, std::byte* target, size_t step, size_t num_rows) {
  if (columns.size() == 1 && columns[0].row_bytes == step) {
    std::memcpy(target, columns[0].values, num_rows * step);
    return;
  }
  for (size_t first = 0; first < num_rows; first += kRows) {
    const size_t num = std::min(kRows, num_rows - first);
    for (const Column& column : columns) {
      const std::byte* from = column.values + first * column.row_bytes;
      std::byte* to = target + first * step + column.offset;
      switch (column.move) {
        case Move::one: move<uint8_t>(to, step, from, num); break;
        case Move::two: move<uint16_t>(to, step, from, num); break;
        case Move::four: move<uint32_t>(to, step, from, num); break;
        case Move::eight: move<uint64_t>(to, step, from, num); break;
        case Move::int1: move<int8_t, int64_t>(to, step, from, num); break;
        case Move::int2: move<int16_t, int64_t>(to, step, from, num); break;
        case Move::int4: move<int32_t, int64_t>(to, step, from, num); break;
        case Move::uint1: move<uint8_t, uint64_t>(to, step, from, num); break;
        case Move::uint2: move<uint16_t, uint64_t>(to, step, from, num); break;
        case Move::uint4: move<uint32_t, uint64_t>(to, step, from, num); break;
        case Move::bytes:
          for (size_t i = 0; i < num; ++i) std::memcpy(to + i * step, from + i * column.row_bytes, column.row_bytes);
          break;
      }
    }
  }
}

constexpr uint32_t kSign = 0x8000, kExponent = 0x7C00, kFraction = 0x03FF;
// Bits of the fraction that a binary32 has more, and how far its sign is further up.
constexpr int kMore = 13, kUp = 16;
// What to add to an exponent, whose zero is 15 here and 127 there: and to one of all ones, which stays so.
constexpr uint32_t kBias = (127 - 15) << 23, kAllOnes = (255 - 31) << 23;
// Of a fraction whose exponent is zero, in which no one is left out.
constexpr float kSmall = 0x1p-24F;
// Floats that stay in the first-level cache.
constexpr size_t kFloats = 1024;

// Returns the piece that row `row` lies in; there is one.
template <typename Pieces>
auto piece_with(const Pieces& pieces, size_t row) {
  return std::upper_bound(pieces.begin(), pieces.end(), row, [](size_t at, const auto& piece) { return at < piece.stop; });
}

}  // namespace

Move move_of(size_t from_bytes, size_t to_bytes, bool is_signed) {
  if (from_bytes < to_bytes) {
    if (to_bytes == 8 && from_bytes == 1) return is_signed ? Move::int1 : Move::uint1;
    if (to_bytes == 8 && from_bytes == 2) return is_signed ? Move::int2 : Move::uint2;
    if (to_bytes == 8 && from_bytes == 4) return is_signed ? Move::int4 : Move::uint4;
    throw std::invalid_argument("only integers are widened, and only to eight bytes");
  }
  switch (from_bytes) {
    case 1: return Move::one;
    case 2: return Move::two;
    case 4: return Move::four;
    case 8: return Move::eight;
    default: return Move::bytes;
  }
}

void RecordPacker::add_piece(size_t num_rows, std::span<const Column> columns) {
  for (const Column& column : columns)
    if (column.offset + (column.move < Move::int1 ? column.row_bytes : 8) > record_bytes_)
      throw std::invalid_argument("a column does not fit a record");
  auto& pieces = fields_.back();
  const size_t start = pieces.empty() ? 0 : pieces.back().stop;
  if (num_rows) pieces.push_back({start, start + num_rows, {columns.begin(), columns.end()}});
}

void RecordPacker::pack(std::span<std::byte> block, size_t start, size_t stop) const {
  if (start > stop || (stop - start) * record_bytes_ > block.size()) throw std::invalid_argument("records do not fit a block");
  std::vector<std::vector<Piece>::const_iterator> at;
  for (const auto& pieces : fields_) {
    if (stop > (pieces.empty() ? 0 : pieces.back().stop)) throw std::invalid_argument("a column has too few rows");
    at.push_back(piece_with(pieces, start));
  }
  std::vector<Column> columns;
  for (size_t first = start, last; first < stop; first = last) {
    last = stop;
    columns.clear();
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (at[i]->stop == first) ++at[i];
      last = std::min(last, at[i]->stop);
      for (Column column : at[i]->columns) {
        column.values += (first - at[i]->start) * column.row_bytes;
        columns.push_back(column);
      }
    }
    pack_rows(columns, block.data() + (first - start) * record_bytes_, record_bytes_, last - first);
  }
}

void ListPacker::add_piece(const std::byte* values, size_t num_values) {
  auto& pieces = fields_.back().pieces;
  const size_t start = pieces.empty() ? 0 : pieces.back().stop;
  if (num_values) pieces.push_back({start, start + num_values, values});
}

void ListPacker::pack(std::span<std::byte> block, std::span<const uint32_t> places, size_t start, size_t stop) const {
  const size_t width = 1 + fields_.size();
  if (start > stop || places.size() < stop * width) throw std::invalid_argument("there are not so many rows");
  if (start == stop) return;
  struct Cursor {
    const std::byte* from;
    size_t left;  // values in this piece
    std::vector<Piece>::const_iterator next;
    size_t value_bytes;
  };
  std::vector<Cursor> cursors;
  for (const Field& field : fields_) {
    const size_t first = static_cast<size_t>(field.offsets[start]);
    if (static_cast<size_t>(field.offsets[stop]) > (field.pieces.empty() ? 0 : field.pieces.back().stop))
      throw std::invalid_argument("lists have more values than there are");
    const auto piece = piece_with(field.pieces, first);
    if (piece == field.pieces.end()) cursors.push_back({nullptr, 0, piece, field.value_bytes});
    else
      cursors.push_back(
          {piece->values + (first - piece->start) * field.value_bytes, piece->stop - first, piece + 1, field.value_bytes});
  }
  const size_t begin = places[start * width];
  for (size_t row = start; row < stop; ++row) {
    const uint32_t* place = places.data() + row * width;
    size_t at = (place[0] - begin) * kListUnit;
    for (size_t f = 0; f < cursors.size(); ++f) {
      Cursor& cursor = cursors[f];
      const size_t num = place[f + 1], num_bytes = num * cursor.value_bytes;
      if (!num) continue;
      if (!cursor.left) {
        cursor.from = cursor.next->values;
        cursor.left = cursor.next->stop - cursor.next->start;
        ++cursor.next;
      }
      if (num > cursor.left || at + num_bytes > block.size()) throw std::invalid_argument("lists do not fit where they go");
      std::memcpy(block.data() + at, cursor.from, num_bytes);
      cursor.from += num_bytes;
      cursor.left -= num;
      at += num_bytes;
    }
    const size_t end = (at + kListUnit - 1) / kListUnit * kListUnit;
    if (end > block.size()) throw std::invalid_argument("lists do not fit where they go");
    std::memset(block.data() + at, 0, end - at);
  }
}

void mark_changes(std::span<const uint8_t> data, std::span<const int64_t> starts, std::span<bool> changes) {
  if (starts.size() != changes.size() + 1) throw std::invalid_argument("rows must have as many starts, and an end");
  const int64_t size = static_cast<int64_t>(data.size());
  for (size_t i = 1; i < changes.size(); ++i) {
    if (changes[i]) continue;
    const int64_t before = starts[i - 1], begin = starts[i], end = starts[i + 1];
    if (before < 0 || begin < before || end < begin || end > size) throw std::invalid_argument("a row is not in the data");
    changes[i] = begin - before != end - begin ||
                 std::memcmp(data.data() + before, data.data() + begin, static_cast<size_t>(end - begin)) != 0;
  }
}

STOKER_VERSIONS
void widen_float16(std::span<const uint16_t> halves, std::span<float> singles) {
  float small[kFloats];
  for (size_t begin = 0; begin < halves.size(); begin += kFloats) {
    const size_t num = std::min(kFloats, halves.size() - begin);
    const uint16_t* __restrict from = halves.data() + begin;
    float* __restrict to = singles.data() + begin;
    // By an integer: a subnormal float would be zero where the processor is told to flush them. A loop of its own:
    // what may raise a floating-point exception keeps the other from being done side by side.
    for (size_t i = 0; i < num; ++i) small[i] = static_cast<float>(static_cast<int32_t>(from[i] & kFraction)) * kSmall;
    for (size_t i = 0; i < num; ++i) {
      const uint32_t half = from[i], exponent = half & kExponent;
      const uint32_t bias = exponent == kExponent ? kAllOnes : kBias;
      const uint32_t usual = ((half & (kExponent | kFraction)) << kMore) + bias;
      const uint32_t bits = exponent == 0 ? std::bit_cast<uint32_t>(small[i]) : usual;
      to[i] = std::bit_cast<float>(bits | ((half & kSign) << kUp));
    }
  }
}

}  // namespace stoker
