// Which row of which chunk stands at a position of a shuffle window.
//
//   positions   start ........................... stop      what a step takes, one behind the other
//                  ╲ permuted by the window's key ╱
//   places      slot 0 ──── │ slot 1 ── │ slot 2 ─────     the window's chunks side by side
#pragma once

#include <cstdint>
#include <span>

namespace stoker {

struct WindowOrder {
  int64_t start, stop;  // positions of the window
  uint64_t key;         // of its permutation
  bool shuffles;
  std::span<const int64_t> slot_starts;  // place at which each slot of the epoch begins, increasing
  std::span<const int64_t> shifts;       // what to add to a place to get its row, for each slot of the window
  std::span<const int32_t> guide;        // slot in which each stretch of 2**guide_shift places begins, and one more
  int guide_shift;
  int64_t first_slot;  // slot of the epoch that is the window's first

  // Writes slot, counted from the window's first, and row of each position, all of them in the window.
  void locate(std::span<const int64_t> position, std::span<int64_t> slot, std::span<int64_t> row) const;

  // Writes the same for consecutive positions from `first` on.
  void locate_range(int64_t first, std::span<int64_t> slot, std::span<int64_t> row) const;
};

}  // namespace stoker
