// Chunk files read past the page cache, into memory that windows use one after the other.
//
//   window    0   1   2   3   4   5
//   memory    a   b   a   b   a   b       each is read while the one before it is used
//
// A page that is touched for the first time costs the processor as much as reading it ten times (8 to 10 microseconds
// on machines that get their memory from a host), a page that is used again costs nothing.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "chunk_map.h"

namespace stoker {

// Gives memory, which comes back to be given again when nobody refers to it any more. Safe to use from several threads.
class WindowMemory {
 public:
  WindowMemory();

  // At least so many bytes, with whatever lay there before. Waits for moments where as much as is wanted at one time is
  // given already, if it may.
  std::shared_ptr<Mapping> take(size_t num_bytes, bool waits);

  // Says that a window needed none: after many in a row, the system gets back what is free.
  void rest();

  // Gives the system back what is not in use.
  void clear();

  // Memories that wait to be used again.
  size_t num_free() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

struct ChunkFile {
  int fd;
  size_t num_bytes;
};

// Reads files, side by side, by some threads of its own, and returns them in memory.
//
//   files      chunk 7, 40 MB            chunk 2, 13 MB         …
//   pieces     ┆ 0 ┆ 1 ┆ 2 ┆ 3 ┆ 4 ┆ …                          each taken by the thread that is free next
//
// Each file goes to a page's border, and what follows in its last page is written, too: past the page cache nothing but
// whole pages can be read. `waits`: see `WindowMemory::take`.
//
// Throws std::system_error: the disk failed, or a file is shorter than it was.
std::vector<ChunkMap> read_chunks(std::span<const ChunkFile> files, WindowMemory& memory, bool waits);

}  // namespace stoker
