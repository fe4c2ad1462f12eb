// Snappy, the codec that most writers use unless told otherwise; no library that is always there offers it.
//
// Source: Snappy's format_description.txt: a length, then literals and copies of what came before.
#pragma once

#include <cstdint>
#include <span>

namespace stoker::parquet {

// Fills `out` with what was compressed; false where that is not exactly as long, or something is wrong.
bool unsnap(std::span<const uint8_t> packed, std::span<uint8_t> out);

}  // namespace stoker::parquet
