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

// Where rows of a part go in the batch.
struct Places {
  const int64_t* given;  // none for one after the other
  int64_t first;

  STOKER_INLINE int64_t of(size_t i) const { return given ? given[i] : first + static_cast<int64_t>(i); }
};

// A part's records.
struct Records {
  const uint8_t* const* begins;
  const int64_t *slot, *row;
  size_t num_bytes;

  STOKER_INLINE const uint8_t* of(size_t i) const { return begins[slot[i]] + static_cast<size_t>(row[i]) * num_bytes; }
};

STOKER_INLINE Records records_of(const Part& part) {
  return {part.table->records.data(), part.slot.data(), part.row.data(), part.table->record_bytes};
}

enum class Move { kStream, kLines, kAny };

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

// The numbers in a part's records of what they share, if these are asked for.
struct Runs {
  Records records;
  RunTarget target;

  STOKER_INLINE void ask(size_t) const {}
  STOKER_INLINE void read(size_t start, size_t stop) const {
    if (!target.out) return;
    for (size_t i = start; i < stop; ++i) target.out[i] = load<uint32_t>(records.of(i) + target.offset);
  }
};

// Where the lists of a part's rows lie. `read` writes offsets; lengths where rows have places, which `add_up` adds up.
struct Strips {
  const int64_t *slot, *row;
  const uint8_t *const *tables, *const *strips;
  Places to;
  size_t num_fields, num_rows;
  const int64_t* value_bytes;
  const uint8_t** sources;
  int64_t* offsets;

  STOKER_INLINE const uint8_t* entry(size_t i) const {
    return tables[slot[i]] + static_cast<size_t>(row[i]) * (1 + num_fields) * 4;
  }
  STOKER_INLINE void ask(size_t i) const {
    const uint8_t* first = entry(i);
    prefetch(first);
    prefetch(first + num_fields * 4);
  }
  STOKER_INLINE void read(size_t start, size_t stop) const {
    const uint8_t *entries[kTogether], *at[kTogether];
    const size_t num = stop - start;
    for (size_t i = 0; i < num; ++i) {
      entries[i] = entry(start + i);
      at[i] = strips[slot[start + i]] + size_t{load<uint32_t>(entries[i])} * 8;
    }
    for (size_t f = 0; f < num_fields; ++f) {
      const uint8_t** __restrict found = sources + f * num_rows;
      int64_t* __restrict out = offsets + f * (num_rows + 1);
      const int64_t size = value_bytes[f];
      if (to.given) {
        for (size_t i = 0; i < num; ++i) {
          const int64_t length = load<uint32_t>(entries[i] + 4 * (f + 1)), place = to.given[start + i];
          found[place] = at[i];
          out[place + 1] = length;
          at[i] += length * size;
        }
      } else {
        const size_t first = static_cast<size_t>(to.first) + start;
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

struct Apart {
  const int64_t *slot, *row;
  const uint8_t *const *tables, *const *inner_tables, *const *values;
  Places to;
  int64_t value_bytes;
  const uint8_t** sources;
  const uint8_t** inner;
  int64_t* offsets;

  STOKER_INLINE const uint8_t* entry(size_t i) const { return tables[slot[i]] + static_cast<size_t>(row[i]) * 8; }
  STOKER_INLINE void ask(size_t i) const { prefetch(entry(i)); }
  STOKER_INLINE void read(size_t start, size_t stop) const {
    for (size_t i = start; i < stop; ++i) {
      const int64_t begin = load<int64_t>(entry(i)), length = load<int64_t>(entry(i) + 8) - begin, place = to.of(i);
      offsets[place + 1] = to.given ? length : offsets[place] + length;
      if (inner_tables) {
        sources[place] = values[slot[i]];
        inner[place] = inner_tables[slot[i]] + begin * 8;
      } else {
        sources[place] = values[slot[i]] + begin * value_bytes;
      }
    }
  }
};

// Goes through the rows of a part: copies their records, and reads what lies beside these meanwhile.
template <Move kMove, typename Beside>
STOKER_INLINE void go_through(const Part& part, RecordTarget target, Places to, Beside beside) {
  const Processor processor = this_processor();
  const Records records = records_of(part);
  const size_t num = part.row.size(), num_bytes = records.num_bytes, further = processor.further;
  const size_t ahead = std::clamp<size_t>(kAheadBytes / num_bytes, 1, processor.rows_ahead);
  constexpr size_t kNoted = 64;  // more than are asked for ahead
  const uint8_t* noted[kNoted];
  auto ask = [&](size_t i) __attribute__((always_inline)) {
    beside.ask(i);
    noted[i % kNoted] = records.of(i);
    prefetch_row(noted[i % kNoted], num_bytes, processor.nearest);
  };
  for (size_t i = 0; i < std::min(ahead, num); ++i) ask(i);
  for (size_t start = 0; start < num; start += kTogether) {
    const size_t stop = std::min(start + kTogether, num);
    for (size_t i = start; i < stop; ++i) {
      if (further && i + ahead + further < num) prefetch(records.of(i + ahead + further));
      if (i + ahead < num) ask(i + ahead);
      copy_record<kMove>(target.begin + static_cast<size_t>(to.of(i)) * target.stride, noted[i % kNoted], num_bytes);
    }
    beside.read(start, stop);
  }
  if (kMove == Move::kStream) fence();
}

template <typename Beside>
STOKER_INLINE void go_through(const Part& part, RecordTarget target, Places to, Move move, Beside beside) {
  if (move == Move::kStream) return go_through<Move::kStream>(part, target, to, beside);
  if (move == Move::kLines) return go_through<Move::kLines>(part, target, to, beside);
  go_through<Move::kAny>(part, target, to, beside);
}

// Reads what lies beside records alone.
template <typename Beside>
STOKER_INLINE void go_through(size_t num, Beside beside) {
  for (size_t i = 0; i < std::min(kTogether, num); ++i) beside.ask(i);
  for (size_t start = 0; start < num; start += kTogether) {
    const size_t stop = std::min(start + kTogether, num);
    for (size_t i = stop; i < std::min(stop + kTogether, num); ++i) beside.ask(i);
    beside.read(start, stop);
  }
}

STOKER_VERSIONS
void take(const Part& part, RecordTarget target, Places to, Move move, Runs runs) {
  go_through(part, target, to, move, runs);
}

STOKER_VERSIONS
void take_with_strips(const Part& part, RecordTarget target, Places to, Move move, Strips strips) {
  go_through(part, target, to, move, strips);
}

STOKER_VERSIONS
void take_with_field(const Part& part, RecordTarget target, Places to, Move move, Apart apart) {
  go_through(part, target, to, move, apart);
}

STOKER_VERSIONS
void read_strips(size_t num, Strips strips) { go_through(num, strips); }

STOKER_VERSIONS
void read_apart(size_t num, Apart apart) { go_through(num, apart); }

Move move_for(size_t num_rows, size_t record_bytes, RecordTarget target) {
  if (record_bytes % kLineBytes) return Move::kAny;
  const bool streams =
      num_rows * record_bytes >= kStreamedBytes && is_aligned(target.begin) && target.stride % kLineBytes == 0;
  return streams ? Move::kStream : Move::kLines;
}

// Calls a function with each part and its rows' places.
template <typename Function>
void for_parts(const Rows& rows, Function function) {
  size_t begin = 0;
  for (const Part& part : rows.parts) {
    const Places to{rows.places.empty() ? nullptr : rows.places.data() + begin, static_cast<int64_t>(begin)};
    if (!part.row.empty()) function(part, to);
    begin += part.row.size();
  }
}

Strips strips_of(const Part& part, size_t group, Places to, FoundLists& found) {
  const ListGroup& lists = part.table->groups[group];
  return {part.slot.data(), part.row.data(), lists.places.data(), lists.values.data(), to, found.num_fields,
          found.num_rows, found.value_bytes.data(), found.sources.get(), found.offsets};
}

Apart apart_of(const Part& part, size_t group, Places to, FoundLists& found) {
  const ListGroup& lists = part.table->groups[group];
  return {part.slot.data(), part.row.data(), lists.places.data(), lists.is_nested() ? lists.inner.data() : nullptr,
          lists.values.data(), to, found.value_bytes[0], found.sources.get(), found.inner.data(), found.offsets};
}

void add_up(FoundLists& found) {
  for (size_t f = 0; f < found.num_fields; ++f) {
    int64_t *offsets = found.offsets + f * (found.num_rows + 1), end = 0;
    for (size_t i = 1; i <= found.num_rows; ++i) offsets[i] = end += offsets[i];
  }
}

// Goes through the arrays of a window's chunks in their order.
class Arrays {
 public:
  Arrays(const Window& window, std::span<const ArrayPlace> places, size_t num_arrays)
      : chunks_(window.chunks), places_(places), num_arrays_(num_arrays) {}

  // Where the next array of each chunk begins, once it is sure that it lies there.
  std::vector<const uint8_t*> next() {
    std::vector<const uint8_t*> begins(chunks_.size());
    for (size_t k = 0; k < begins.size(); ++k) {
      const ArrayPlace place = places_[k * num_arrays_ + next_];
      const int64_t size = static_cast<int64_t>(chunks_[k].num_bytes());
      if (place.offset < 0 || place.num_bytes < 0 || place.offset > size || place.num_bytes > size - place.offset) {
        throw std::invalid_argument("an array of a chunk does not lie in its file");
      }
      begins[k] = chunks_[k].data() + place.offset;
    }
    ++next_;
    return begins;
  }

  // The same of an array that has so many bytes a row, and some more at the end: which says how many rows there are.
  std::vector<const uint8_t*> next(Table& table, size_t row_bytes, size_t more_bytes = 0) {
    const bool is_first = table.num_rows.empty();
    table.num_rows.resize(chunks_.size());
    for (size_t k = 0; k < chunks_.size(); ++k) {
      const size_t num_bytes = static_cast<size_t>(places_[k * num_arrays_ + next_].num_bytes);
      const size_t num_rows = num_bytes < more_bytes ? 0 : (num_bytes - more_bytes) / row_bytes;
      if (num_rows * row_bytes + more_bytes != num_bytes || (!is_first && num_rows != table.num_rows[k])) {
        throw std::invalid_argument("an array of a chunk has another number of rows than its table");
      }
      table.num_rows[k] = num_rows;
    }
    return next();
  }

 private:
  const std::vector<ChunkMap>& chunks_;
  std::span<const ArrayPlace> places_;
  size_t num_arrays_, next_ = 0;
};

}  // namespace

size_t TableLayout::num_arrays() const {
  size_t num = record_bytes ? 1 : 0;
  for (const Lists& one : lists) num += one.is_nested ? 3 : 2;
  return num;
}

Window::Window(std::vector<ChunkMap> given, std::span<const ArrayPlace> places, std::span<const TableLayout> layouts)
    : chunks(std::move(given)) {
  size_t num_arrays = 0;
  for (const TableLayout& layout : layouts) num_arrays += layout.num_arrays();
  if (places.size() != chunks.size() * num_arrays) throw std::invalid_argument("there must be a place for each array");
  Arrays arrays(*this, places, num_arrays);
  for (const TableLayout& layout : layouts) {
    Table& table = tables.emplace_back();
    table.record_bytes = layout.record_bytes;
    if (layout.record_bytes) table.records = arrays.next(table, layout.record_bytes);
    for (const TableLayout::Lists& lists : layout.lists) {
      ListGroup& group = table.groups.emplace_back(ListGroup{lists.is_strip, lists.value_bytes, {}, {}, {}});
      group.places = lists.is_strip ? arrays.next(table, 4 * (1 + lists.value_bytes.size())) : arrays.next(table, 8, 8);
      if (lists.is_nested) group.inner = arrays.next();
      group.values = arrays.next();
    }
  }
}

FoundLists::FoundLists(const ListGroup& group, size_t num, int64_t* out)
    : num_fields(group.value_bytes.size()), num_rows(num), value_bytes(group.value_bytes),
      sources(std::make_unique_for_overwrite<const uint8_t*[]>(num_fields * num)), offsets(out), begins(num_fields),
      inner(group.is_nested() ? num : 0) {
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
    sources[i] += begin * value_bytes[0];
    const int64_t shift = total - begin;
    for (int64_t k = 1; k <= num; ++k) inner_offsets[offsets[i] + k] = load<int64_t>(inner[i] + k * 8) + shift;
    total = inner_offsets[offsets[i + 1]];
    value_offsets[i + 1] = total;
  }
}

size_t FoundLists::lay_out(std::span<const int64_t> chosen) {
  // Whole lines, and one that the last list may write to; see `copy_fields`.
  size_t end = 0;
  for (size_t f = 0; f < num_fields; ++f) {
    const int64_t* borders = inner.empty() ? offsets + f * (num_rows + 1) : value_offsets.data();
    begins[f] = static_cast<int64_t>(end);
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), f) == chosen.end()) {
      begins[f] = -1;
      continue;
    }
    const size_t num_bytes = static_cast<size_t>(borders[num_rows] * value_bytes[f]);
    end += (num_bytes + kLineBytes - 1) / kLineBytes * kLineBytes + kLineBytes;
  }
  return end;
}

void take_records(const Rows& rows, RecordTarget target) {
  for_parts(rows, [&](const Part& part, Places to) {
    if (part.table->record_bytes == 0) return;
    take(part, target, to, move_for(rows.num, part.table->record_bytes, target), {records_of(part), {0, nullptr}});
  });
}

void take_records_and_runs(const Part& part, RecordTarget target, RunTarget runs) {
  take(part, target, {nullptr, 0}, move_for(part.row.size(), part.table->record_bytes, target), {records_of(part), runs});
}

void read_runs(const Part& part, RunTarget target) {
  const Records records = records_of(part);
  constexpr size_t kAhead = 16;
  const size_t num = part.row.size();
  for (size_t i = 0; i < num; ++i) {
    if (i + kAhead < num) prefetch(records.of(i + kAhead) + target.offset);
    target.out[i] = load<uint32_t>(records.of(i) + target.offset);
  }
}

void find_lists(const Rows& rows, size_t group, FoundLists& found) {
  for_parts(rows, [&](const Part& part, Places to) {
    if (part.table->groups[group].is_strip) {
      read_strips(part.row.size(), strips_of(part, group, to, found));
    } else {
      read_apart(part.row.size(), apart_of(part, group, to, found));
    }
  });
  if (!rows.places.empty()) add_up(found);
}

void take_records_and_find_lists(const Rows& rows, RecordTarget target, size_t group, FoundLists& found) {
  const size_t record_bytes = rows.parts.empty() ? 0 : rows.parts[0].table->record_bytes;
  const Move move = move_for(rows.num, record_bytes, target);
  // Stores leave an AMD core in turn, and those past the caches hold up the others: records and strips at once take
  // it 141 to 163 nanoseconds a row, one after the other 121 to 140.
  if (record_bytes == 0 || (move == Move::kStream && this_processor().is_amd)) {
    take_records(rows, target);
    return find_lists(rows, group, found);
  }
  for_parts(rows, [&](const Part& part, Places to) {
    if (part.table->groups[group].is_strip) {
      take_with_strips(part, target, to, move, strips_of(part, group, to, found));
    } else {
      take_with_field(part, target, to, move, apart_of(part, group, to, found));
    }
  });
  if (!rows.places.empty()) add_up(found);
}

size_t distinct(std::span<const int64_t> slot, std::span<const int64_t> row, std::span<const int64_t> sizes,
                int64_t* found_slot, int64_t* found_row, int32_t* number, int64_t* counts) {
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
            int64_t* found_slot, int64_t* found_row) {
  for (size_t i = 0; i < slot.size(); ++i) {
    for (int64_t k = offsets[i]; k < offsets[i + 1]; ++k) {
      found_slot[k] = slot[i];
      found_row[k] = first[i] + k - offsets[i];
    }
  }
}

}  // namespace stoker
