// Copies lists whose places are known: exactly, past the caches, or in pieces without asking how long each is.
#include <algorithm>
#include <memory>

#include "gather.h"
#include "moves.h"

namespace stoker {
namespace {

// Where lists are this long on average they are written past the caches, too: those from this size on by themselves,
// shorter ones side by side from a stage in L1. Where most are shorter that takes longer than it saves.
constexpr size_t kLongListBytes = 512, kStageBytes = size_t{4} << 10;

// Shorter ones than this, on average, go in pieces. Two threads of an EPYC (Zen 4), in pieces and by themselves: lists
// of 300 to 900 bytes 10.2 and 7.3 GB/s, 500 to 1,500 bytes 11.9 and 9.9, 1,024 bytes 12.0 and 12.5, 1,500 to 2,500
// bytes 15.3 and 16.9.
constexpr size_t kLongestInPieces = 1024;

constexpr size_t kListsAhead = 12;

bool are_long(size_t num, size_t num_bytes, size_t list_bytes) {
  return num_bytes >= std::max(kStreamedBytes, num * list_bytes);
}

constexpr size_t whole(size_t num_bytes) { return num_bytes - num_bytes % kLineBytes; }

// Lists of one field; those of `value_bytes` each.
struct List {
  const uint8_t* const* sources;
  const int64_t* offsets;
  size_t value_bytes;

  STOKER_INLINE size_t begin(size_t i) const { return static_cast<size_t>(offsets[i]) * value_bytes; }
  STOKER_INLINE size_t num_bytes(size_t i) const { return begin(i + 1) - begin(i); }
  STOKER_INLINE void ask(size_t i) const { prefetch_row(sources[i], num_bytes(i)); }
};

STOKER_VERSIONS
void copy_each(List lists, size_t num, uint8_t* out) {
  for (size_t i = 0; i < std::min(kListsAhead, num); ++i) lists.ask(i);
  for (size_t i = 0; i < num; ++i) {
    if (i + kListsAhead < num) lists.ask(i + kListsAhead);
    copy_exactly(out + lists.begin(i), lists.sources[i], lists.num_bytes(i));
  }
}

// Copies lists past the caches, in whole lines, wherever they begin and end.
//
//   lists   ├ 0 ┤├──── 1 ────┤├ 2 ┤├──────────── 3, long ────────────┤├ 4 ┤
//   stage    └─────────┴─────────┴──┐                              └──┴ next stage
//   out     │ line │ line │ line │ line │ line │ line │ line │ line │ ...
//
// Short ones are put side by side in a stage that stays in L1; its whole lines go out when it is full. A long one goes
// out by itself, but for the bytes that share a line with its neighbours.
STOKER_VERSIONS
void stream_each(List lists, size_t num, uint8_t* out) {
  alignas(kLineBytes) uint8_t stage[kStageBytes + kLineBytes];
  size_t filled = 0;  // bytes in the stage; `out` moves on behind whole lines
  for (size_t i = 0; i < std::min(kListsAhead, num); ++i) lists.ask(i);
  for (size_t i = 0; i < num; ++i) {
    if (i + kListsAhead < num) lists.ask(i + kListsAhead);
    const uint8_t* source = lists.sources[i];
    size_t left = lists.num_bytes(i);
    const bool is_long = left >= kLongListBytes;
    if (is_long) {
      const size_t head = (kLineBytes - filled % kLineBytes) % kLineBytes;
      copy<kLineBytes>(stage + filled, source);  // the list has as many bytes, and the stage has room
      filled += head, source += head, left -= head;
    }
    if (is_long || filled + left > kStageBytes) {
      const size_t done = whole(filled);
      stream_lines(out, stage, done / kLineBytes);
      out += done, filled -= done;
      copy<kLineBytes>(stage, stage + done);
    }
    if (is_long) {
      const size_t done = whole(left);
      stream_lines(out, source, done / kLineBytes);
      out += done, source += done, left -= done;
    }
    copy_exactly(stage + filled, source, left);
    filled += left;
  }
  stream_lines(out, stage, filled / kLineBytes);
  copy_exactly(out + whole(filled), stage + whole(filled), filled % kLineBytes);
  fence();
}

// Copies the lists of several fields, each field's side by side, without asking how long a list is.
//
//   strips   ┆ a0 │ b0 ┆ a1  │b1┆ a2 │   b2 ┆        the lists of a row, anywhere in the window
//   pieces   a0 a0 a1 a1 a2 | b0 b1 b2 b2            64 bytes each, some rows at a time, a field after the other
//   target   ├ a0 ┤├ a1 ┤├ a2 ┤   ├ b0 ┤├b1┤├ b2 ┤   what a piece has too much is written over by the next list
//
// No processor guesses where a list of any length ends, and each wrong guess stops all that it has under way. So lists
// are cut into pieces first, which needs no guess: for each list eight are written down, and the next list's begin
// behind those that it has. Then one loop copies all pieces, and asks for those of the next rows meanwhile
// (docs/decisions/0018). What is too much of a list's last piece lies behind it in the chunk, where windows have room.
//
// Past the caches they go by way of stages, one a field, whose whole lines go out behind each block:
//
//   stage of a field   ├ 0 ┤├──── 1 ────┤├ 2 ┤├─── 3 ───┤
//   out                │ line │ line │ line │ line │ └── begins the next block's stage

// Rows that are cut and asked for together, so far ahead of their turn: fewer come too late, more do not stay at hand.
// Two threads of an EPYC (Zen 4), two histories and a word, nanoseconds a row: 16 rows 70, 32 rows 55, 64 rows 60.
constexpr size_t kRows = 32;
// Together they have so many bytes at most; a row of more is copied by itself. Rows of 200 short lists, 6.4 kB: two at a
// time 2,900 nanoseconds each, ten 2,100, since each field of a block has a price.
constexpr size_t kBlockBytes = size_t{64} << 10;
// What each field's stage has room for beside whole lines of a block: what was left before, a line that is begun, and
// what its last piece has too much.
constexpr size_t kStageRoom = 3 * kLineBytes;
// Pieces that are written down at once: as many as one vector register has room for.
constexpr size_t kSteps = 8;

struct Pieces {
  std::unique_ptr<uint64_t[]> sources, targets;  // addresses, and places in the target
  size_t num = 0;

  explicit Pieces(size_t most)
      : sources(std::make_unique_for_overwrite<uint64_t[]>(most)),
        targets(std::make_unique_for_overwrite<uint64_t[]>(most)) {}

  STOKER_INLINE void swap(Pieces& other) noexcept {
    sources.swap(other.sources), targets.swap(other.targets);
    std::swap(num, other.num);
  }
};

// Writes `first`, and what is one, two, ... lines more.
STOKER_INLINE void write_steps(uint64_t* out, uint64_t first) {
  using Four = uint64_t __attribute__((vector_size(32)));
  const Four four = first + Four{0, kLineBytes, 2 * kLineBytes, 3 * kLineBytes}, more = four + 4 * kLineBytes;
  __builtin_memcpy(out, &four, sizeof four);
  __builtin_memcpy(out + 4, &more, sizeof more);
}

class InPieces {
 public:
  // Of fields [first, last) of what was found.
  InPieces(const FoundLists& found, size_t first, size_t last, uint8_t* out, bool streams)
      : num_fields_(last - first), num_rows_(found.num_rows), value_bytes_(found.group.value_bytes.data() + first),
        begins_(found.begins.data() + first), sources_(found.sources.get() + first * num_rows_), offsets_(found.borders(first)),
        out_(out), streams_(streams), now_(most()), next_(most()), shifts_(num_fields_), next_shifts_(num_fields_) {
    if (!streams) return;
    const size_t room = kBlockBytes + (num_fields_ + 1) * kStageRoom;
    memory_ = std::make_unique_for_overwrite<uint8_t[]>(room + (num_fields_ + 1) * kLineBytes);
    stages_ = memory_.get() + (0 - reinterpret_cast<uintptr_t>(memory_.get())) % kLineBytes;
    rests_ = stages_ + room / kLineBytes * kLineBytes;
    for (size_t f = 0; f < num_fields_; ++f) shifts_[f] = 0 - begin_of(f);
  }

  STOKER_INLINE void copy_all() {
    size_t start = 0, stop = 0;
    while (true) {
      // Rows [start, stop) have been cut and asked for; the next block is, before they are copied.
      const size_t row = stop, next_stop = end_of_block(row);
      const bool is_long = num_bytes(row, next_stop) > kBlockBytes;
      const size_t next_start = is_long ? next_stop : row;
      if (streams_) place_stages(next_start, next_stop);
      cut(next_start, next_stop);
      copy_pieces();
      if (streams_) send(start, stop);
      if (is_long) copy_long(row);
      if (streams_) begin_stages(next_start, row == num_rows_);
      if (row == num_rows_) break;
      start = next_start, stop = next_stop;
      now_.swap(next_);
    }
    if (streams_) fence();
  }

 private:
  size_t most() const { return kBlockBytes / kLineBytes + kRows * num_fields_ + kSteps; }
  STOKER_INLINE List list(size_t f) const {
    return {sources_ + f * num_rows_, offsets_ + f * (num_rows_ + 1), static_cast<size_t>(value_bytes_[f])};
  }
  STOKER_INLINE size_t begin_of(size_t f) const { return static_cast<size_t>(begins_[f]); }
  // Where list `i` begins in the batch's values.
  STOKER_INLINE size_t place(size_t f, size_t i) const { return begin_of(f) + list(f).begin(i); }

  STOKER_INLINE size_t num_bytes(size_t start, size_t stop) const {
    size_t num = 0;
    for (size_t f = 0; f < num_fields_; ++f) num += place(f, stop) - place(f, start);
    return num;
  }

  STOKER_INLINE size_t end_of_block(size_t start) const {
    size_t num = std::min(kRows, num_rows_ - start);
    while (num > 1 && num_bytes(start, start + num) > kBlockBytes) num /= 2;
    return start + num;
  }

  // Stages of a block lie side by side, so that they stay in L1. A shift is how far a stage is from its place in the
  // batch, modulo 2**64.
  STOKER_INLINE void place_stages(size_t start, size_t stop) {
    size_t end = 0;
    for (size_t f = 0; f < num_fields_; ++f) {
      next_shifts_[f] = end - whole(place(f, start));
      end += whole(place(f, stop) - place(f, start)) + kStageRoom;
    }
  }

  // Cuts the lists of rows [start, stop) into pieces. The first line of each strip is asked for.
  STOKER_INLINE void cut(size_t start, size_t stop) {
    uint64_t* __restrict sources = next_.sources.get();
    uint64_t* __restrict targets = next_.targets.get();
    for (size_t f = 0; f < num_fields_; ++f) {
      const List lists = list(f);
      const size_t begin = begin_of(f) + (streams_ ? next_shifts_[f] : 0);
      size_t end = begin + lists.begin(start);
      for (size_t i = start; i < stop; ++i) {
        const uint64_t source = reinterpret_cast<uintptr_t>(lists.sources[i]), target = end;
        end = begin + lists.begin(i + 1);
        const size_t num = (end - target + kLineBytes - 1) / kLineBytes;
        if (f == 0) prefetch(lists.sources[i]);
        write_steps(sources, source);
        write_steps(targets, target);
        for (size_t piece = kSteps; piece < num; piece += kSteps) {
          write_steps(sources + piece, source + piece * kLineBytes);
          write_steps(targets + piece, target + piece * kLineBytes);
        }
        sources += num, targets += num;
      }
    }
    next_.num = static_cast<size_t>(sources - next_.sources.get());
  }

  // Copies the pieces of a block, and asks for those of the next one: for the line in which each of these ends.
  STOKER_INLINE void copy_pieces() {
    uint8_t* target = streams_ ? stages_ : out_;
    const uint64_t *sources = now_.sources.get(), *targets = now_.targets.get(), *next = next_.sources.get();
    const size_t num = now_.num, num_next = next_.num, both = std::min(num, num_next);
    for (size_t k = 0; k < both; ++k) {
      prefetch(reinterpret_cast<const uint8_t*>(next[k] + kLineBytes - 1));
      copy<kLineBytes>(target + targets[k], reinterpret_cast<const uint8_t*>(sources[k]));
    }
    for (size_t k = both; k < num; ++k) {
      copy<kLineBytes>(target + targets[k], reinterpret_cast<const uint8_t*>(sources[k]));
    }
    for (size_t k = both; k < num_next; ++k) prefetch(reinterpret_cast<const uint8_t*>(next[k] + kLineBytes - 1));
  }

  STOKER_INLINE void send(size_t start, size_t stop) {
    for (size_t f = 0; f < num_fields_; ++f) {
      const size_t first = whole(place(f, start)), last = whole(place(f, stop));
      stream_lines(out_ + first, stages_ + (first + shifts_[f]), (last - first) / kLineBytes);
      copy<kLineBytes>(rests_ + f * kLineBytes, stages_ + (last + shifts_[f]));
    }
  }

  // Copies the lists of a row that is a block by itself: the line that was begun, what follows, and begins another.
  STOKER_INLINE void copy_long(size_t row) {
    for (size_t f = 0; f < num_fields_; ++f) {
      const size_t begin = place(f, row), end = place(f, row + 1);
      if (streams_) copy<kLineBytes>(out_ + whole(begin), rests_ + f * kLineBytes);
      copy_lines(out_ + begin, list(f).sources[row], (end - begin + kLineBytes - 1) / kLineBytes);
      if (streams_) copy<kLineBytes>(rests_ + f * kLineBytes, out_ + whole(end));
    }
  }

  STOKER_INLINE void begin_stages(size_t row, bool is_over) {
    for (size_t f = 0; f < num_fields_; ++f) {
      const size_t last = whole(place(f, row));
      copy<kLineBytes>(is_over ? out_ + last : stages_ + (last + next_shifts_[f]), rests_ + f * kLineBytes);
      shifts_[f] = next_shifts_[f];
    }
  }

  const size_t num_fields_, num_rows_;
  const int64_t *const value_bytes_, *const begins_;
  const uint8_t* const* const sources_;  // [F, B]
  const int64_t* const offsets_;         // [F, B + 1]
  uint8_t* const out_;
  const bool streams_;
  Pieces now_, next_;
  std::vector<size_t> shifts_, next_shifts_;
  std::unique_ptr<uint8_t[]> memory_;
  uint8_t *stages_ = nullptr, *rests_ = nullptr;  // a stage, and the line that is begun of it, for each field
};

STOKER_VERSIONS
void copy_in_pieces(InPieces& pieces) { pieces.copy_all(); }

}  // namespace

void copy_lists(const uint8_t* const* sources, int64_t value_bytes, std::span<const int64_t> offsets, uint8_t* out) {
  const List lists{sources, offsets.data(), static_cast<size_t>(value_bytes)};
  const size_t num = offsets.size() - 1;
  if (is_aligned(out) && are_long(num, lists.begin(num), kLongListBytes)) return stream_each(lists, num, out);
  copy_each(lists, num, out);
}

void FoundLists::copy(uint8_t* out) const {
  const auto is_long = [&](size_t f) { return are_long(num_rows, size_of(f), kLongestInPieces); };
  size_t total = 0;
  for (size_t f = 0; f < num_fields; ++f) total += begins[f] < 0 ? 0 : size_of(f);
  const bool streams = total >= kStreamedBytes && is_aligned(out);
  for (size_t f = 0, stop; f < num_fields; f = stop) {
    stop = f + 1;
    if (begins[f] < 0) continue;
    if (is_long(f)) {
      copy_lists(sources.get() + f * num_rows, group.value_bytes[f], {borders(f), num_rows + 1}, out + begins[f]);
      continue;
    }
    while (stop < num_fields && begins[stop] >= 0 && !is_long(stop)) ++stop;
    InPieces pieces(*this, f, stop, out, streams);
    copy_in_pieces(pieces);
  }
}

}  // namespace stoker
