// What an epoch takes, from numbers alone: which row stands at a position of a shuffle window, and which row a draw by
// weight takes.
#pragma once

#include <cstdint>
#include <span>

namespace stoker {

// Which row of which chunk stands at a position of a shuffle window.
//
//   positions   start ........................... stop      what a step takes, one behind the other
//                  ╲ permuted by the window's key ╱
//   places      slot 0 ──── │ slot 1 ── │ slot 2 ─────     the window's chunks side by side
struct WindowOrder {
  int64_t start, stop;             // positions of the window
  std::span<const uint64_t> keys;  // of its permutation; of several, each permutes an equal part, all in the same places
  bool shuffles;
  std::span<const int64_t> slot_starts;  // place at which each slot of the epoch begins, increasing
  std::span<const int64_t> shifts;       // what to add to a place to get its row, for each slot of the window
  std::span<const int32_t> bucket_slots; // slot in which each bucket of 2**bucket_bits places begins, and one more
  int bucket_bits;
  int64_t first_slot;  // slot of the epoch that is the window's first

  // Writes slot, counted from the window's first, and row of each position, all of them in the window.
  void locate(std::span<const int64_t> position, std::span<int64_t> slot, std::span<int64_t> row) const;

  // Writes the same for consecutive positions from `first` on.
  void locate_range(int64_t first, std::span<int64_t> slot, std::span<int64_t> row) const;
};

// Which row each draw of an epoch takes where samples are drawn by weight: systematic resampling in exact integers.
//
//   row           0     1 2             3        4
//   cumulated     │─────│││─────────────│────────│            integer weights added up, W in all
//   draws           ↑     ↑     ↑     ↑     ↑                 draw t of N stands at (t * W + shift) / N
//
// The rows of a block are mixed, anew in every epoch: data that repeat every few rows would else fall in step with the
// draws. src/stoker/sampling/units.py explains what comes of it.
//
// Source: Carpenter, Clifford and Fearnhead, "Improved particle filter for nonlinear problems", 1999.
struct Draws {
  std::span<const int64_t> cumulated;     // [N + 1], from 0 to W
  std::span<const int64_t> chunk_starts;  // first row of each chunk, and N. [K + 1]
  std::span<const int64_t> chunk_draws;   // first draw of each chunk, and N. [K + 1]
  int64_t shift;                          // below W
  uint64_t key;                           // of the mixing

  // Writes the row of its chunk that each draw, counted from its chunk's first, takes.
  void rows(std::span<const int64_t> chunk, std::span<const int64_t> draw, std::span<int64_t> out) const;
};

}  // namespace stoker
