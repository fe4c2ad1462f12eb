#include "packing.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "moves.h"

namespace stoker {
namespace {

constexpr int64_t kNone = -1;

// The rows that have room, by how much they have.
class Rooms {
 public:
  Rooms(size_t length, size_t num_rows) : has_room_(length / 64 + 1), top_(length + 1, kNone), below_(num_rows, kNone) {}

  void add(size_t room, int64_t row) {
    below_[row] = std::exchange(top_[room], row);
    has_room_[room / 64] |= uint64_t{1} << room % 64;
  }

  // Takes out a row with the least room from `size` on, of several the one that was added last, and returns the room; 0
  // where none has so much.
  size_t take(size_t size, int64_t& row) {
    size_t word = size / 64;
    uint64_t found = has_room_[word] & ~uint64_t{0} << size % 64;
    while (!found && ++word < has_room_.size()) found = has_room_[word];
    if (!found) return 0;
    const size_t room = word * 64 + static_cast<size_t>(std::countr_zero(found));
    row = top_[room];
    top_[room] = below_[row];
    if (top_[room] == kNone) has_room_[word] &= ~(uint64_t{1} << room % 64);
    return room;
  }

 private:
  std::vector<uint64_t> has_room_;  // a bit for each room: whether a row has it
  std::vector<int64_t> top_;        // of each room, the row that was added last
  std::vector<int64_t> below_;      // of each row, the one that was added before it
};

// Numbers of 4 bytes that are written to L1 before they go out.
constexpr size_t kStaged = 1024;

// Collects numbers and writes them a stage at a time, past the caches where they are many: tokens of documents of 300,
// two streams of numbers, 11 to 26 GB/s instead of 5 to 8.
class Stage {
 public:
  STOKER_INLINE Stage(uint8_t* out, bool streams) : out_(out), streams_(streams) {}

  STOKER_INLINE int32_t* free() { return values_ + filled_; }
  STOKER_INLINE size_t room() const { return kStaged - filled_; }

  STOKER_INLINE void add(size_t num) {
    filled_ += num;
    if (filled_ == kStaged) flush();
  }

  STOKER_INLINE void flush() {
    const uint8_t* staged = reinterpret_cast<const uint8_t*>(values_);
    const size_t num_bytes = filled_ * sizeof(int32_t), num_lines = num_bytes / kLineBytes;
    if (streams_) stream_lines(out_, staged, num_lines);
    else
      copy_lines(out_, staged, num_lines);
    const size_t done = num_lines * kLineBytes;
    copy_exactly(out_ + done, staged + done, num_bytes - done);
    out_ += num_bytes;
    filled_ = 0;
  }

 private:
  alignas(kLineBytes) int32_t values_[kStaged];
  uint8_t* out_;
  size_t filled_ = 0;
  bool streams_;
};

// Writes the same id, and positions from 0 on or always 0, for some tokens.
STOKER_INLINE void fill(Stage& ids, Stage& positions, size_t num, int32_t id, int32_t step) {
  int32_t position = 0;
  while (num) {
    const size_t some = std::min(num, ids.room());
    int32_t *id_out = ids.free(), *position_out = positions.free();
    for (size_t i = 0; i < some; ++i) {
      id_out[i] = id;
      position_out[i] = position + step * static_cast<int32_t>(i);
    }
    position += step * static_cast<int32_t>(some);
    num -= some;
    ids.add(some);
    positions.add(some);
  }
}

// Ranges of so many bytes go past the caches by themselves, but for what shares a line with their neighbours.
constexpr size_t kLongBytes = 512;

STOKER_INLINE void copy_range(uint8_t* out, const uint8_t* in, size_t num_bytes, bool streams) {
  if (!streams || num_bytes < kLongBytes) return copy_exactly(out, in, num_bytes);
  const size_t head = -reinterpret_cast<uintptr_t>(out) % kLineBytes, num_lines = (num_bytes - head) / kLineBytes;
  const size_t done = head + num_lines * kLineBytes;
  copy_exactly(out, in, head);
  stream_lines(out + head, in + head, num_lines);
  copy_exactly(out + done, in + done, num_bytes - done);
}

// Writes a value several times: once, then twice as much of what is there each time.
STOKER_INLINE uint8_t* repeat(uint8_t* out, std::span<const uint8_t> value, size_t num) {
  const size_t num_bytes = num * value.size();
  for (size_t done = 0, some; done < num_bytes; done += some) {
    some = done ? std::min(done, num_bytes - done) : value.size();
    std::memcpy(out + done, done ? out : value.data(), some);
  }
  return out + num_bytes;
}

}  // namespace

size_t best_fit(std::span<const int64_t> lengths, int64_t length, std::span<int64_t> document, std::span<int64_t> first,
                std::span<int64_t> starts) {
  struct Piece {
    int64_t document, first, size, row;
  };
  std::vector<Piece> pieces;
  pieces.reserve(document.size());
  for (size_t i = 0; i < lengths.size(); ++i)
    for (int64_t at = 0; at < lengths[i]; at += length)
      pieces.push_back({static_cast<int64_t>(i), at, std::min(lengths[i] - at, length), kNone});

  // Longest first, equal ones in their order.
  std::vector<size_t> begins(static_cast<size_t>(length) + 1), by_size(pieces.size());
  for (const Piece& piece : pieces) ++begins[static_cast<size_t>(length - piece.size) + 1];
  for (size_t i = 1; i < begins.size(); ++i) begins[i] += begins[i - 1];
  for (size_t i = 0; i < pieces.size(); ++i) by_size[begins[static_cast<size_t>(length - pieces[i].size)]++] = i;

  Rooms rooms(static_cast<size_t>(length), pieces.size());
  int64_t num_rows = 0;
  for (const size_t i : by_size) {
    Piece& piece = pieces[i];
    const size_t size = static_cast<size_t>(piece.size), room = rooms.take(size, piece.row);
    if (!room) piece.row = num_rows++;
    const size_t left = (room ? room : static_cast<size_t>(length)) - size;
    if (left) rooms.add(left, piece.row);
  }

  // Rows numbered by the first piece that is in them; then the pieces row by row.
  std::vector<int64_t> numbers(static_cast<size_t>(num_rows), kNone);
  int64_t num_numbered = 0;
  std::fill(starts.begin(), starts.end(), 0);
  for (Piece& piece : pieces) {
    int64_t& number = numbers[piece.row];
    if (number == kNone) number = num_numbered++;
    piece.row = number;
    ++starts[static_cast<size_t>(number) + 1];
  }
  for (size_t i = 1; i <= static_cast<size_t>(num_rows); ++i) starts[i] += starts[i - 1];
  std::vector<int64_t> ends(starts.begin(), starts.begin() + num_rows);
  for (const Piece& piece : pieces) {
    const size_t at = static_cast<size_t>(ends[piece.row]++);
    document[at] = piece.document;
    first[at] = piece.first;
  }
  return static_cast<size_t>(num_rows);
}

STOKER_VERSIONS
void fill_places(const PackedRows& rows, std::span<int32_t> ids, std::span<int32_t> positions) {
  const bool streams = ids.size_bytes() >= kStreamedBytes && is_aligned(ids.data()) && is_aligned(positions.data());
  Stage id_stage(reinterpret_cast<uint8_t*>(ids.data()), streams);
  Stage position_stage(reinterpret_cast<uint8_t*>(positions.data()), streams);
  for (size_t row = 0; row < rows.num_rows(); ++row) {
    size_t left = rows.length;
    const int64_t begin = rows.offsets[row], end = rows.offsets[row + 1];
    for (int64_t s = begin; s < end; ++s) {
      const size_t num = static_cast<size_t>(rows.num[s]);
      fill(id_stage, position_stage, num, static_cast<int32_t>(s - begin + 1), 1);
      left -= num;
    }
    fill(id_stage, position_stage, left, 0, 0);
  }
  id_stage.flush();
  position_stage.flush();
  if (streams) fence();
}

STOKER_VERSIONS
void pack_values(const PackedRows& rows, const uint8_t* const* lists, std::span<const int64_t> first,
                 std::span<const int64_t> num_values, std::span<const uint8_t> end, std::span<const uint8_t> pad,
                 std::span<uint8_t> out) {
  const bool streams = out.size() >= kStreamedBytes;
  const size_t value_bytes = pad.size();
  const auto source = [&](size_t s) __attribute__((always_inline)) {
    return lists[s] + static_cast<size_t>(first[s]) * value_bytes;
  };
  uint8_t* at = out.data();
  for (size_t row = 0; row < rows.num_rows(); ++row) {
    uint8_t* const row_end = at + rows.length * value_bytes;
    for (size_t s = static_cast<size_t>(rows.offsets[row]); s < static_cast<size_t>(rows.offsets[row + 1]); ++s) {
      if (s + 1 < num_values.size()) prefetch_row(source(s + 1), static_cast<size_t>(num_values[s + 1]) * value_bytes);
      const size_t num = static_cast<size_t>(num_values[s]), num_bytes = num * value_bytes;
      copy_range(at, source(s), num_bytes, streams);
      at = repeat(at + num_bytes, end, static_cast<size_t>(rows.num[s]) - num);
    }
    at = repeat(at, pad, static_cast<size_t>(row_end - at) / std::max<size_t>(value_bytes, 1));
  }
  if (streams) fence();
}

}  // namespace stoker
