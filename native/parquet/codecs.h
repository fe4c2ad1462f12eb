// What decompresses pages, and proves that as many bytes came of one as its header promises.
#pragma once

#include <cstdint>
#include <span>

namespace stoker::parquet {

// Numbers of the format. The LZ4 of old (5) is written in three ways that nothing tells apart.
enum class Codec : int64_t { kUncompressed = 0, kSnappy = 1, kZstd = 6, kLz4Raw = 7 };

// Whether `decompress` knows a codec: snappy, which most writers use unless told otherwise, by itself, since no library
// that is always there offers it; zstd and lz4 by the system's libraries, where it has them.
bool can_decompress(Codec codec);

// Fills `out` with what was compressed; false where that is not exactly as long, or the codec is not known.
bool decompress(Codec codec, std::span<const uint8_t> packed, std::span<uint8_t> out);

// The checksum that writers leave of a page as it is stored.
uint32_t crc32(std::span<const uint8_t> bytes);

}  // namespace stoker::parquet
