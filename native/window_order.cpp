#include "window_order.h"

#include <algorithm>
#include <numeric>

#include "permutation.h"

namespace stoker {
namespace {

// Turns places, given as `row`, into slots and rows.
STOKER_VERSIONS
void find(const WindowOrder& order, std::span<int64_t> slot, std::span<int64_t> row) {
  const int64_t *starts = order.slot_starts.data(), *shifts = order.shifts.data();
  const int32_t* guide = order.guide.data();
  for (size_t i = 0; i < row.size(); ++i) {
    const int64_t place = row[i], bucket = place >> order.guide_shift;
    int64_t low = guide[bucket], high = guide[bucket + 1];
    while (low + 1 < high) {
      const int64_t middle = (low + high) >> 1;
      if (starts[middle] <= place) low = middle;
      else
        high = middle - 1;
    }
    // One border at most, as in nearly every stretch: before or behind it is anyone's guess, the processor's too.
    low += (high - low) * (starts[high] <= place);
    slot[i] = low - order.first_slot;
    row[i] = place + shifts[low - order.first_slot];
  }
}

}  // namespace

void WindowOrder::locate(std::span<const int64_t> position, std::span<int64_t> slot, std::span<int64_t> row) const {
  if (shuffles) permute(position, start, static_cast<uint64_t>(stop - start), key, row);
  else
    std::copy(position.begin(), position.end(), row.begin());
  find(*this, slot, row);
}

void WindowOrder::locate_range(int64_t first, std::span<int64_t> slot, std::span<int64_t> row) const {
  const std::span<int64_t> positions = shuffles ? slot : row;  // where their slots will be
  std::iota(positions.begin(), positions.end(), first);
  if (shuffles) permute(slot, start, static_cast<uint64_t>(stop - start), key, row);
  find(*this, slot, row);
}

}  // namespace stoker
