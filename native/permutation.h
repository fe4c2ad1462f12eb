// The shuffle: a bijection on [0, size) computed on the fly, in constant memory, the same on every machine.
//
// docs/order.md explains the construction. Change nothing here without a new version of the order.
//
// Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (cycle walking);
//         Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014 (splitmix64, with
//         Stafford's variant 13 of the finaliser).
#pragma once

#include <cstdint>
#include <span>

namespace stoker {

// Writes where each of `index` goes among `size` values; both count from `start`.
void permute(std::span<const int64_t> index, int64_t start, uint64_t size, uint64_t key, std::span<int64_t> out);

}  // namespace stoker
