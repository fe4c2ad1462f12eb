// Hashes of strings, the same on every machine for ever: XXH3 of 64 bits, seed 0, default secret.
//
// Source: xxHash's doc/xxhash_spec.md, version 0.2.0.
#pragma once

#include <cstdint>
#include <span>

namespace stoker {

// Writes the bucket of each string, its hash modulo `num_buckets`. `offsets` says where each begins in `data`, and the
// last one ends; false where they lead out of it.
bool hash_strings(std::span<const uint8_t> data, std::span<const int64_t> offsets, uint64_t num_buckets,
                  std::span<int64_t> out);

}  // namespace stoker
