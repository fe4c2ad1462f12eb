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
#pragma once

#include <cstdint>
#include <span>

namespace stoker {

// Rows that are mixed: more than lists usually are long, and few enough to walk through at every draw.
constexpr int64_t kBlockRows = 32;

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
