// The shuffle: a bijection on [0, size) computed on the fly, in constant memory, the same on every machine.
//
// docs/reference/order.md explains the construction. Change nothing here without a new version of the order.
//
// Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (cycle walking);
//         Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014 (splitmix64, with
//         Stafford's variant 13 of the finaliser).
#pragma once

#include <cstdint>
#include <span>

#include "processor.h"

namespace stoker {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15, kMix1 = 0xBF58476D1CE4E5B9, kMix2 = 0x94D049BB133111EB;

// 64 bits that depend on every bit of `value`: the finaliser of splitmix64.
STOKER_INLINE uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * kMix1;
  value = (value ^ (value >> 27)) * kMix2;
  return value ^ (value >> 31);
}

// The n-th number, from 0, of the splitmix64 stream that begins at `key`.
STOKER_INLINE uint64_t draw(uint64_t key, uint64_t n) { return mix(key + (n + 1) * kGolden); }

// One of `num` numbers, by the upper half of a draw.
STOKER_INLINE uint64_t scaled(uint64_t drawn, uint64_t num) { return ((drawn >> 32) * num) >> 32; }

// Writes where each of `index` goes among `size` values; both count from `start`. `out` may be `index` itself.
void permute(std::span<const int64_t> index, int64_t start, uint64_t size, uint64_t key, std::span<int64_t> out);

// Writes the index that goes to each of `place`: the inverse. `out` may be `place` itself.
void unpermute(std::span<const int64_t> place, int64_t start, uint64_t size, uint64_t key, std::span<int64_t> out);

// Writes the component at each place from `first` on, of blocks side by side. Block j has counts[j][k] places of
// component k, permuted by keys[j].
void mix_blocks(std::span<const int64_t> counts, size_t num_components, std::span<const uint64_t> keys, int64_t first,
                std::span<int64_t> out);

// Writes the places of component 0, ascending, then those of component 1, and so on.
void group_places(std::span<const int64_t> component, size_t num_components, std::span<int64_t> out);

}  // namespace stoker
