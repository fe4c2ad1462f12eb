// Reads pieces of files into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stoker {

// A piece of an open file: `num_bytes` from `offset` on go to byte `at` of the target.
struct FilePiece {
  int64_t fd, offset, num_bytes, at;
};

// Reads pieces `first`, `first + step`, ..., whole pages each, as a file that is read past the page cache wants them.
// Returns which could not be read whole, or how many there are.
//
// Source: Linux man-pages, pread(2).
size_t read_pieces(std::span<const FilePiece> pieces, std::span<uint8_t> target, size_t first, size_t step,
                   size_t page_bytes);

}  // namespace stoker
