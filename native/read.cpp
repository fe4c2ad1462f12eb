#include "read.h"

#include <unistd.h>

namespace stoker {

size_t read_pieces(std::span<const FilePiece> pieces, std::span<uint8_t> target, size_t first, size_t step,
                   size_t page_bytes) {
  for (size_t i = first; i < pieces.size(); i += step) {
    const FilePiece& piece = pieces[i];
    const size_t at = static_cast<size_t>(piece.at), num_bytes = static_cast<size_t>(piece.num_bytes);
    const size_t asked = (num_bytes + page_bytes - 1) / page_bytes * page_bytes;
    if (at > target.size() || asked > target.size() - at) return i;
    if (pread(static_cast<int>(piece.fd), target.data() + at, asked, piece.offset) < piece.num_bytes) return i;
  }
  return pieces.size();
}

}  // namespace stoker
