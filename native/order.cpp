#include "order.h"

#include <algorithm>
#include <numeric>

#include "permutation.h"

namespace stoker {
namespace {

// Rows that are mixed: more than lists usually are long, and few enough to walk through at every draw.
constexpr int64_t kBlockRows = 32;

// Writes the place of each position, in the order of its part.
void permute_parts(const WindowOrder& order, std::span<const int64_t> position, std::span<int64_t> out) {
  const size_t num_parts = order.keys.size();
  const int64_t size = (order.stop - order.start) / static_cast<int64_t>(num_parts);
  for (auto left = position; !left.empty();) {
    const int64_t part = (left[0] - order.start) / size, first = order.start + part * size;
    const auto is_beyond = [&](int64_t one) { return one < first || one >= first + size; };
    const auto end = num_parts == 1 ? left.end() : std::ranges::find_if(left, is_beyond);
    const std::span here(left.begin(), end);
    const auto places = out.first(here.size());
    left = left.subspan(here.size());
    out = out.subspan(here.size());
    if (order.shuffles) permute(here, first, static_cast<uint64_t>(size), order.keys[static_cast<size_t>(part)], places);
    else
      std::ranges::copy(here, places.begin());
    if (part)
      for (int64_t& one : places) one -= part * size;
  }
}

// Turns places, given as `row`, into slots and rows.
STOKER_VERSIONS
void find(const WindowOrder& order, std::span<int64_t> slot, std::span<int64_t> row) {
  const int64_t *starts = order.slot_starts.data(), *shifts = order.shifts.data();
  const int32_t* bucket_slots = order.bucket_slots.data();
  for (size_t i = 0; i < row.size(); ++i) {
    const int64_t place = row[i], bucket = place >> order.bucket_bits;
    int64_t low = bucket_slots[bucket], high = bucket_slots[bucket + 1];
    while (low + 1 < high) {
      const int64_t middle = (low + high) >> 1;
      if (starts[middle] <= place) low = middle;
      else
        high = middle - 1;
    }
    // One border at most, as in nearly every bucket: before or behind it is anyone's guess, the processor's too.
    low += (high - low) * (starts[high] <= place);
    slot[i] = low - order.first_slot;
    row[i] = place + shifts[low - order.first_slot];
  }
}

__extension__ using Int128 = __int128;

// The last of [first, stop) that begins at or before a place. Looked for from where it would be if all weights were
// equal: a few steps of doubling length around it, then halves. That is a fifth less time for a whole batch.
int64_t find_row(const int64_t* cumulated, int64_t first, int64_t stop, int64_t place) {
  const int64_t begin = cumulated[first], end = cumulated[stop];
  const double rows_a_weight = static_cast<double>(stop - first) / static_cast<double>(end - begin);
  const int64_t guess = first + static_cast<int64_t>(static_cast<double>(place - begin) * rows_a_weight);
  const int64_t from = std::clamp(guess, first, stop - 1);
  int64_t step = 8;
  if (cumulated[from] <= place) {
    first = from;
    while (first + step < stop && cumulated[first + step] <= place) {
      first += step;
      step *= 2;
    }
    stop = std::min(stop, first + step);
  } else {
    stop = from;
    while (stop - step > first && cumulated[stop - step] > place) {
      stop -= step;
      step *= 2;
    }
    first = std::max(first, stop - step);
  }
  while (stop - first > 1) {
    const int64_t middle = (first + stop) / 2;
    (cumulated[middle] <= place ? first : stop) = middle;
  }
  return first;
}

// The row of a block that stands at a place, counted in weight from the last of its mixed rows: Fisher and Yates from
// the last row down, which may end before all are mixed. `cumulated` begins at the block.
int64_t find_mixed(const int64_t* cumulated, int64_t num_rows, int64_t place, uint64_t key) {
  int64_t mixed[kBlockRows];
  for (int64_t i = 0; i < num_rows; ++i) mixed[i] = i;
  for (int64_t i = num_rows - 1; i > 0; --i) {
    const uint64_t n = static_cast<uint64_t>(i), j = scaled(draw(key, n), n + 1);
    const int64_t row = mixed[j], weight = cumulated[row + 1] - cumulated[row];
    if (place < weight) return row;
    place -= weight;
    mixed[j] = mixed[i];
  }
  return mixed[0];
}

}  // namespace

void WindowOrder::locate(std::span<const int64_t> position, std::span<int64_t> slot, std::span<int64_t> row) const {
  permute_parts(*this, position, row);
  find(*this, slot, row);
}

void WindowOrder::locate_range(int64_t first, std::span<int64_t> slot, std::span<int64_t> row) const {
  std::iota(slot.begin(), slot.end(), first);  // where their slots will be
  locate(slot, slot, row);
}

void Draws::rows(std::span<const int64_t> chunk, std::span<const int64_t> draws, std::span<int64_t> out) const {
  const int64_t num = static_cast<int64_t>(cumulated.size()) - 1, total = cumulated.back();
  for (size_t i = 0; i < chunk.size(); ++i) {
    const int64_t start = chunk_starts[chunk[i]], stop = chunk_starts[chunk[i] + 1];
    const Int128 scaled_place = Int128{chunk_draws[chunk[i]] + draws[i]} * total + shift;
    const int64_t place = static_cast<int64_t>(scaled_place / num);
    const int64_t row = find_row(cumulated.data(), start, stop, place);
    const int64_t block = start + (row - start) / kBlockRows * kBlockRows;
    const int64_t* weights = cumulated.data() + block;
    out[i] = block - start + find_mixed(weights, std::min(kBlockRows, stop - block), place - *weights,
                                        draw(key, static_cast<uint64_t>(block)));
  }
}

}  // namespace stoker
