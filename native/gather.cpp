#include "gather.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "bytes.h"
#include "moves.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace stoker {
namespace {

// What is best differs between processors.
struct Processor {
  bool is_amd = false;
  bool nearest = false;  // rows are asked for into L1; see `prefetch`
  size_t rows_ahead = 32;
  // Of so many rows further ahead the first line alone is asked for: to find out where a page lies takes as long as to
  // read a line of it, and whatever else is asked for waits behind it. Two threads of an Intel Xeon in a virtual
  // machine, records and strips: 95 -> 91 nanoseconds a row. On an EPYC (Zen 4) it takes 2 to 3 more.
  size_t further = 8;

  Processor() {
#if defined(__x86_64__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx)) return;
    is_amd = ebx == signature_AMD_ebx;
    if (!is_amd) return;
    rows_ahead = 16;
    further = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) nearest = ((eax >> 8) & 15) + ((eax >> 20) & 255) == 0x1A;  // Zen 5
#endif
  }
};

const Processor& this_processor() {
  static const Processor found;
  return found;
}

// Bytes that are asked for ahead of their turn: near enough that they are still at hand when it is their turn. Records
// of 640 bytes, 4,096 of them: 8 rows ahead 425 microseconds, 16 rows 412, 32 rows 384.
constexpr size_t kAheadBytes = size_t{20} << 10;

// Rows whose lists are found together, a field after the other, which keeps a field's numbers in registers: row by row,
// three fields, they went through memory, 15 nanoseconds a row more.
constexpr size_t kTogether = 32;

// A part's rows, and where in the batch they go: to given places, or one after the other.
struct Job {
  const int64_t *slot, *row, *given;
  size_t first, num;
  const uint8_t* const* begins;
  size_t record_bytes;
  RecordTarget target;

  STOKER_INLINE size_t place(size_t i) const { return given ? static_cast<size_t>(given[i]) : first + i; }
  STOKER_INLINE const uint8_t* record(size_t i) const {
    return begins[slot[i]] + static_cast<size_t>(row[i]) * record_bytes;
  }
};

enum class Move { kNone, kStream, kLines, kAny };

template <Move kMove>
STOKER_INLINE void copy_record(uint8_t* out, const uint8_t* in, size_t num_bytes) {
  if constexpr (kMove == Move::kStream) {
    stream_lines(out, in, num_bytes / kLineBytes);
  } else if constexpr (kMove == Move::kLines) {
    copy_lines(out, in, num_bytes / kLineBytes);
  } else {
    switch (num_bytes) {
      case 1: *out = *in; break;
      case 2: copy<2>(out, in); break;
      case 4: copy<4>(out, in); break;
      case 8: copy<8>(out, in); break;
      case 16: copy<16>(out, in); break;
      case 32: copy<32>(out, in); break;
      default: copy_exactly(out, in, num_bytes);
    }
  }
}

// What is read of rows beside their records, or alone: nothing,
struct Nothing {
  STOKER_INLINE void ask(const Job&, size_t) const {}
  STOKER_INLINE void read(const Job&, size_t, size_t) const {}
};

// numbers in the records,
struct Runs {
  size_t offset;
  int64_t* out;

  STOKER_INLINE void ask(const Job& job, size_t i) const { prefetch(job.record(i) + offset); }
  STOKER_INLINE void read(const Job& job, size_t start, size_t stop) const {
    for (size_t i = start; i < stop; ++i) out[job.first + i] = load<uint32_t>(job.record(i) + offset);
  }
};

// or where lists lie. `read` writes offsets; lengths where rows have places, which are added up behind it.
struct Lists {
  const uint8_t *const *places, *const *inner_places, *const *values;
  const int64_t* value_bytes;
  size_t num_fields, num_rows;
  const uint8_t **sources, **inner;
  int64_t* offsets;

  Lists(const ListGroup& group, FoundLists& found)
      : places(group.places.data()), inner_places(group.is_nested ? group.inner.data() : nullptr), values(group.values.data()),
        value_bytes(group.value_bytes.data()), num_fields(found.num_fields), num_rows(found.num_rows),
        sources(found.sources.get()), inner(found.inner.data()), offsets(found.offsets) {}
};

struct Strips : Lists {
  using Lists::Lists;

  STOKER_INLINE const uint8_t* entry(const Job& job, size_t i) const {
    return places[job.slot[i]] + static_cast<size_t>(job.row[i]) * (1 + num_fields) * 4;
  }
  STOKER_INLINE void ask(const Job& job, size_t i) const {
    const uint8_t* first = entry(job, i);
    prefetch(first);
    prefetch(first + num_fields * 4);
  }
  STOKER_INLINE void read(const Job& job, size_t start, size_t stop) const {
    const uint8_t *entries[kTogether], *at[kTogether];
    const size_t num = stop - start;
    for (size_t i = 0; i < num; ++i) {
      entries[i] = entry(job, start + i);
      at[i] = values[job.slot[start + i]] + size_t{load<uint32_t>(entries[i])} * 8;
    }
    for (size_t f = 0; f < num_fields; ++f) {
      const uint8_t** __restrict found = sources + f * num_rows;
      int64_t* __restrict out = offsets + f * (num_rows + 1);
      const int64_t size = value_bytes[f];
      if (job.given) {
        for (size_t i = 0; i < num; ++i) {
          const int64_t length = load<uint32_t>(entries[i] + 4 * (f + 1)), place = job.given[start + i];
          found[place] = at[i];
          out[place + 1] = length;
          at[i] += length * size;
        }
      } else {
        const size_t first = job.first + start;
        int64_t end = out[first];
        for (size_t i = 0; i < num; ++i) {
          const int64_t length = load<uint32_t>(entries[i] + 4 * (f + 1));
          found[first + i] = at[i];
          out[first + i + 1] = end += length;
          at[i] += length * size;
        }
      }
    }
  }
};

struct Apart : Lists {
  using Lists::Lists;

  STOKER_INLINE const uint8_t* entry(const Job& job, size_t i) const {
    return places[job.slot[i]] + static_cast<size_t>(job.row[i]) * 8;
  }
  STOKER_INLINE void ask(const Job& job, size_t i) const { prefetch(entry(job, i)); }
  STOKER_INLINE void read(const Job& job, size_t start, size_t stop) const {
    for (size_t i = start; i < stop; ++i) {
      const int64_t begin = load<int64_t>(entry(job, i)), length = load<int64_t>(entry(job, i) + 8) - begin;
      const size_t place = job.place(i);
      offsets[place + 1] = job.given ? length : offsets[place] + length;
      sources[place] = values[job.slot[i]];
      if (inner_places) inner[place] = inner_places[job.slot[i]] + begin * 8;
      else sources[place] += begin * value_bytes[0];
    }
  }
};

// Goes through the rows of a part: copies their records, if that is wanted, and reads what lies beside these meanwhile.
template <Move kMove, typename Beside>
STOKER_INLINE void go_through(const Job job, const Beside beside) {
  constexpr bool kCopies = kMove != Move::kNone;
  const Processor processor = this_processor();
  const size_t num = job.num, num_bytes = job.record_bytes, further = kCopies ? processor.further : 0;
  const size_t ahead = kCopies ? std::clamp<size_t>(kAheadBytes / num_bytes, 1, processor.rows_ahead) : kTogether;
  constexpr size_t kNoted = 64;  // more than are asked for ahead
  const uint8_t* noted[kNoted];
  auto ask = [&](size_t i) __attribute__((always_inline)) {
    beside.ask(job, i);
    if constexpr (!kCopies) return;
    noted[i % kNoted] = job.record(i);
    prefetch_row(noted[i % kNoted], num_bytes, processor.nearest);
  };
  for (size_t i = 0; i < std::min(ahead, num); ++i) ask(i);
  for (size_t start = 0; start < num; start += kTogether) {
    const size_t stop = std::min(start + kTogether, num);
    for (size_t i = start; i < stop; ++i) {
      if (further && i + ahead + further < num) prefetch(job.record(i + ahead + further));
      if (i + ahead < num) ask(i + ahead);
      if constexpr (kCopies)
        copy_record<kMove>(job.target.begin + job.place(i) * job.target.stride, noted[i % kNoted], num_bytes);
    }
    beside.read(job, start, stop);
  }
  if (kMove == Move::kStream) fence();
}

template <typename Beside>
STOKER_INLINE void go_through(const Job& job, Move move, const Beside& beside) {
  switch (move) {
    case Move::kNone: return go_through<Move::kNone>(job, beside);
    case Move::kStream: return go_through<Move::kStream>(job, beside);
    case Move::kLines: return go_through<Move::kLines>(job, beside);
    case Move::kAny: return go_through<Move::kAny>(job, beside);
  }
}

STOKER_VERSIONS
void go(const Job& job, Move move, const Nothing& beside) { go_through(job, move, beside); }

STOKER_VERSIONS
void go(const Job& job, Move move, const Runs& beside) { go_through(job, move, beside); }

STOKER_VERSIONS
void go(const Job& job, Move move, const Strips& beside) { go_through(job, move, beside); }

STOKER_VERSIONS
void go(const Job& job, Move move, const Apart& beside) { go_through(job, move, beside); }

Move move_for(const Rows& rows, RecordTarget target) {
  const size_t record_bytes = rows.parts.empty() ? 0 : rows.parts[0].table->record_bytes;
  if (!record_bytes || !target.begin) return Move::kNone;
  if (record_bytes % kLineBytes) return Move::kAny;
  const bool streams =
      rows.num * record_bytes >= kStreamedBytes && is_aligned(target.begin) && target.stride % kLineBytes == 0;
  return streams ? Move::kStream : Move::kLines;
}

// Goes through all parts, of each by what `beside_of` makes of its table.
template <typename Function>
void go_through_parts(const Rows& rows, RecordTarget target, Move move, Function beside_of) {
  size_t first = 0;
  for (const auto& [table, slot, row] : rows.parts) {
    const int64_t* given = rows.places.empty() ? nullptr : rows.places.data() + first;
    const Job job{slot.data(), row.data(), given, first, row.size(), table->records.data(), table->record_bytes, target};
    if (job.num) go(job, move, beside_of(*table));
    first += job.num;
  }
}

}  // namespace

Window::Window(std::vector<ChunkMap> given, std::span<const ArrayPlace> places, std::span<const Table> layouts)
    : chunks(std::move(given)), tables(layouts.begin(), layouts.end()) {
  const size_t num_arrays = chunks.empty() ? 0 : places.size() / chunks.size();
  size_t array = 0;
  // Where the next array of each chunk begins, once it is sure that it lies there. So many bytes a row, and some more at
  // the end, say how many rows there are.
  const auto next = [&](Table& table, size_t row_bytes = 0, size_t more_bytes = 0) {
    std::vector<const uint8_t*> begins(chunks.size());
    for (size_t k = 0; k < begins.size(); ++k) {
      if (array == num_arrays) throw std::invalid_argument("there must be a place for each array");
      const ArrayPlace place = places[k * num_arrays + array];
      const int64_t size = static_cast<int64_t>(chunks[k].num_bytes());
      if (place.offset < 0 || place.num_bytes < 0 || place.offset > size || place.num_bytes > size - place.offset) {
        throw std::invalid_argument("an array of a chunk does not lie in its file");
      }
      begins[k] = chunks[k].data() + place.offset;
      if (!row_bytes) continue;
      const size_t num_bytes = static_cast<size_t>(place.num_bytes);
      const size_t num_rows = num_bytes < more_bytes ? 0 : (num_bytes - more_bytes) / row_bytes;
      if (table.num_rows.size() == k) table.num_rows.push_back(num_rows);
      if (num_rows * row_bytes + more_bytes != num_bytes || num_rows != table.num_rows[k]) {
        throw std::invalid_argument("an array of a chunk has another number of rows than its table");
      }
    }
    ++array;
    return begins;
  };
  for (Table& table : tables) {
    if (table.record_bytes) table.records = next(table, table.record_bytes);
    for (ListGroup& group : table.groups) {
      group.places = group.is_strip ? next(table, 4 * (1 + group.value_bytes.size())) : next(table, 8, 8);
      if (group.is_nested) group.inner = next(table);
      group.values = next(table);
    }
  }
  if (places.size() != chunks.size() * array) throw std::invalid_argument("there must be a place for each array");
}

FoundLists::FoundLists(const ListGroup& of, size_t num, int64_t* out)
    : group(of), num_fields(of.value_bytes.size()), num_rows(num),
      sources(std::make_unique_for_overwrite<const uint8_t*[]>(num_fields * num)), offsets(out), begins(num_fields),
      inner(of.is_nested ? num : 0) {
  for (size_t f = 0; f < num_fields; ++f) offsets[f * (num_rows + 1)] = 0;
}

void FoundLists::descend(int64_t* inner_offsets) {
  value_offsets.assign(num_rows + 1, 0);
  int64_t total = 0;
  inner_offsets[0] = 0;
  constexpr size_t kAhead = 12;
  for (size_t i = 0; i < num_rows; ++i) {
    if (i + kAhead < num_rows) prefetch(inner[i + kAhead]);
    const int64_t num = offsets[i + 1] - offsets[i], begin = num ? load<int64_t>(inner[i]) : 0;
    sources[i] += begin * group.value_bytes[0];
    const int64_t shift = total - begin;
    for (int64_t k = 1; k <= num; ++k) inner_offsets[offsets[i] + k] = load<int64_t>(inner[i] + k * 8) + shift;
    total = inner_offsets[offsets[i + 1]];
    value_offsets[i + 1] = total;
  }
}

void FoundLists::lay_out(std::span<const int64_t> chosen) {
  // Whole lines, and one that the last list may write to; see `copy`.
  num_bytes = 0;
  for (size_t f = 0; f < num_fields; ++f) {
    begins[f] = static_cast<int64_t>(num_bytes);
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), f) == chosen.end()) {
      begins[f] = -1;
      continue;
    }
    num_bytes += (size_of(f) + kLineBytes - 1) / kLineBytes * kLineBytes + kLineBytes;
  }
}

void take_records(const Rows& rows, RecordTarget target) {
  const Move move = move_for(rows, target);
  if (move != Move::kNone) go_through_parts(rows, target, move, [](const Table&) { return Nothing{}; });
}

void read_runs(const Rows& rows, size_t offset, int64_t* out, RecordTarget target) {
  go_through_parts(rows, target, move_for(rows, target), [&](const Table&) { return Runs{offset, out}; });
}

void find_lists(const Rows& rows, size_t group, FoundLists& found, RecordTarget target) {
  Move move = move_for(rows, target);
  // Stores leave an AMD core in turn, and those past the caches hold up the others: records and strips at once take
  // it 141 to 163 nanoseconds a row, one after the other 121 to 140.
  if (move == Move::kStream && this_processor().is_amd) {
    take_records(rows, target);
    move = Move::kNone;
  }
  if (found.group.is_strip) {
    go_through_parts(rows, target, move, [&](const Table& table) { return Strips(table.groups[group], found); });
  } else {
    go_through_parts(rows, target, move, [&](const Table& table) { return Apart(table.groups[group], found); });
  }
  if (rows.places.empty()) return;
  for (size_t f = 0; f < found.num_fields; ++f) {
    int64_t *offsets = found.offsets + f * (found.num_rows + 1), end = 0;
    for (size_t i = 1; i <= found.num_rows; ++i) offsets[i] = end += offsets[i];
  }
}

size_t distinct(std::span<const int64_t> slot, std::span<const int64_t> row, std::span<const int64_t> sizes,
                std::span<int64_t> found_slot, std::span<int64_t> found_row, std::span<int32_t> number,
                std::span<int64_t> counts) {
  // Half empty at least, so that a place is found in a try or two. What stands there below `before` is another batch's.
  const size_t most = sizes.empty() ? 0 : static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  size_t mask = 1;
  while (mask + 1 < 2 * most) mask = 2 * mask + 1;
  std::vector<int32_t> table(mask + 1, -1);
  int32_t num = 0;
  size_t i = 0;
  for (size_t batch = 0; batch < sizes.size(); ++batch) {
    const size_t start = i, stop = start + static_cast<size_t>(sizes[batch]);
    const int32_t before = num;
    for (; i < stop; ++i) {
      // A row like the one before it, as in data that is grouped, costs a comparison.
      if (i > start && row[i] == row[i - 1] && slot[i] == slot[i - 1]) {
        number[i] = number[i - 1];
        continue;
      }
      const uint64_t hash = (static_cast<uint64_t>(row[i]) + (static_cast<uint64_t>(slot[i]) << 40)) * 0x1E3779B97F4A7C15;
      size_t place = (hash >> 20) & mask;
      while (table[place] >= before && (found_row[table[place]] != row[i] || found_slot[table[place]] != slot[i])) {
        place = (place + 1) & mask;
      }
      if (table[place] < before) {
        table[place] = num;
        found_slot[num] = slot[i];
        found_row[num] = row[i];
        ++num;
      }
      number[i] = table[place] - before;
    }
    counts[batch] = num - before;
  }
  return static_cast<size_t>(num);
}

void expand(std::span<const int64_t> slot, std::span<const int64_t> first, std::span<const int64_t> offsets,
            std::span<int64_t> found_slot, std::span<int64_t> found_row) {
  for (size_t i = 0; i < slot.size(); ++i) {
    for (int64_t k = offsets[i]; k < offsets[i + 1]; ++k) {
      found_slot[k] = slot[i];
      found_row[k] = first[i] + k - offsets[i];
    }
  }
}

}  // namespace stoker
