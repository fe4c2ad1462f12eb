#include "pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>

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

// Moves integers of the size of `Signed` as they are, or widened.
template <typename Signed>
STOKER_INLINE void move_numbers(std::byte* to, size_t step, const std::byte* from, size_t num, const Column& column) {
  using Unsigned = std::make_unsigned_t<Signed>;
  if (column.row_bytes >= column.item_bytes) move<Unsigned>(to, step, from, num);
  else if (column.is_signed) move<Signed, int64_t>(to, step, from, num);
  else move<Unsigned, uint64_t>(to, step, from, num);
}

STOKER_VERSIONS
void pack_rows(std::span<const Column> columns, std::byte* target, size_t step, size_t num_rows) {
  if (columns.size() == 1 && columns[0].row_bytes == step) {
    std::memcpy(target, columns[0].values, num_rows * step);
    return;
  }
  for (size_t first = 0; first < num_rows; first += kRows) {
    const size_t num = std::min(kRows, num_rows - first);
    for (size_t i = 0; i < columns.size(); ++i) {  // not by iterators: see STOKER_INLINE
      const Column& column = columns[i];
      const std::byte* from = column.values + first * column.row_bytes;
      std::byte* to = target + first * step + column.offset;
      switch (column.row_bytes) {
        case 1: move_numbers<int8_t>(to, step, from, num, column); break;
        case 2: move_numbers<int16_t>(to, step, from, num, column); break;
        case 4: move_numbers<int32_t>(to, step, from, num, column); break;
        case 8: move<uint64_t>(to, step, from, num); break;
        default:
          for (size_t i = 0; i < num; ++i) std::memcpy(to + i * step, from + i * column.row_bytes, column.row_bytes);
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

}  // namespace

void RecordPacker::add_piece(size_t num_rows, std::vector<Column> columns) {
  auto& [offset, item_bytes, pieces] = fields_.back();
  size_t at = offset;
  for (Column& column : columns) {
    const size_t row_bytes = column.row_bytes;
    if (row_bytes < item_bytes && (item_bytes != 8 || !std::has_single_bit(row_bytes)))
      throw std::invalid_argument("only integers are widened, and only to eight bytes");
    if (at + std::max(row_bytes, item_bytes) > record_bytes_) throw std::invalid_argument("a column does not fit a record");
    column.offset = at;
    column.item_bytes = item_bytes;
    at += item_bytes;
  }
  const size_t start = pieces.empty() ? 0 : pieces.back().stop;
  if (num_rows) pieces.push_back({start, start + num_rows, std::move(columns)});
}

void RecordPacker::pack(std::span<std::byte> block, size_t start, size_t stop) const {
  if (start > stop || (stop - start) * record_bytes_ > block.size()) throw std::invalid_argument("records do not fit a block");
  std::vector<std::vector<Piece>::const_iterator> at;  // the piece of each field that the next row lies in
  for (const auto& [offset, item_bytes, pieces] : fields_) {
    if (stop > (pieces.empty() ? 0 : pieces.back().stop)) throw std::invalid_argument("a column has too few rows");
    at.push_back(std::ranges::upper_bound(pieces, start, {}, &Piece::stop));
  }
  std::vector<Column> columns;
  for (size_t first = start, last; first < stop; first = last) {
    last = stop;
    columns.clear();
    for (auto& piece : at) {
      if (piece->stop == first) ++piece;
      last = std::min(last, piece->stop);
      for (Column column : piece->columns) {
        column.values += (first - piece->start) * column.row_bytes;
        columns.push_back(column);
      }
    }
    pack_rows(columns, block.data() + (first - start) * record_bytes_, record_bytes_, last - first);
  }
}

void ListPacker::pack(std::span<std::byte> block, std::span<const uint32_t> places, size_t start, size_t stop) const {
  const size_t width = 1 + fields_.size();
  if (start > stop || places.size() < stop * width) throw std::invalid_argument("there are not so many rows");
  if (start == stop) return;
  struct Cursor {
    size_t value_bytes;
    std::span<const Values> next;  // pieces behind the one that is laid
    Values left = {};              // of that one
  };
  const auto begin_next = [](Cursor& cursor) {
    cursor.left = cursor.next.front();
    cursor.next = cursor.next.subspan(1);
  };
  std::vector<Cursor> cursors;
  for (const Field& field : fields_) {
    if (field.offsets.size() <= stop) throw std::invalid_argument("there are not so many rows");
    Cursor& cursor = cursors.emplace_back(Cursor{field.value_bytes, field.pieces});
    size_t before = static_cast<size_t>(field.offsets[start]) * field.value_bytes;
    for (; before >= cursor.left.size() && !cursor.next.empty(); begin_next(cursor)) before -= cursor.left.size();
    cursor.left = cursor.left.subspan(std::min(before, cursor.left.size()));
  }
  const size_t begin = places[start * width];
  for (size_t row = start; row < stop; ++row) {
    const uint32_t* place = places.data() + row * width;
    if (place[0] < begin) throw std::invalid_argument("lists do not lie one behind the other");
    size_t at = (place[0] - begin) * kListUnit;
    for (size_t f = 0; f < cursors.size(); ++f) {
      Cursor& cursor = cursors[f];
      const size_t num_bytes = place[f + 1] * cursor.value_bytes;
      if (!num_bytes) continue;
      while (cursor.left.empty() && !cursor.next.empty()) begin_next(cursor);
      if (num_bytes > cursor.left.size() || at + num_bytes > block.size())
        throw std::invalid_argument("lists do not fit where they go, or have more values than there are");
      std::memcpy(block.data() + at, cursor.left.data(), num_bytes);
      cursor.left = cursor.left.subspan(num_bytes);
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
