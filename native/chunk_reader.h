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
#include <thread>
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

// Reads files, side by side, by some threads of its own.
//
//   files      chunk 7, 40 MB            chunk 2, 13 MB         …
//   pieces     ┆ 0 ┆ 1 ┆ 2 ┆ 3 ┆ 4 ┆ …                          in the order of the files
//   thread 0     0               4                              a disk wants several at a time
//   thread 1         1               5
class ChunkReader {
 public:
  // Begins. Each file goes to a page's border, and what follows in its last page is written, too: past the page cache
  // nothing but whole pages can be read.
  ChunkReader(std::span<const ChunkFile> files, WindowMemory& memory, bool waits);
  ChunkReader(const ChunkReader&) = delete;
  ~ChunkReader();

  // Waits for the end, and returns the files in memory.
  //
  // Throws std::system_error: the disk failed, or a file is shorter than it was.
  std::vector<ChunkMap> finish();

 private:
  struct Piece {
    int fd;
    size_t offset, num_bytes;
    uint8_t* to;
  };
  struct Failure {
    int error = 0;
    size_t missing_bytes = 0;
  };

  void work(size_t first);
  Failure read(Piece piece);
  void join();

  std::vector<ChunkMap> chunks_;
  std::vector<Piece> pieces_;
  std::vector<std::thread> threads_;
  std::vector<Failure> failures_;  // of each thread
  std::atomic<bool> is_over_ = false;
};

}  // namespace stoker
