// Chunk files in memory, one map each, or read past the page cache; and what the system says and does about pages of files.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace stoker {

// Behind a chunk so many bytes can be read: lists are copied by whole lines, and the last one may end with the file.
constexpr size_t kReadBehind = 64;

// Of a huge page, on x86 and, with pages of 4 KiB, on ARM.
constexpr size_t kHugeBytes = size_t{2} << 20;

size_t page_bytes();

// A range of addresses; the system gets it back at the end.
//
// Throws std::system_error where the system refuses.
class Mapping {
 public:
  // Zeros, in huge pages as far as it fills them, from such a page's border on.
  explicit Mapping(size_t num_bytes);
  // The page cache's own pages of a file, from its beginning on. Huge ones stay huge where file and addresses are
  // mapped alike, 2 MiB for 2 MiB: so addresses of large files begin at such a border.
  Mapping(int fd, size_t num_bytes);
  Mapping(const Mapping&) = delete;
  ~Mapping();

  uint8_t* begin = nullptr;
  size_t num_bytes = 0;
  bool is_file = false;
  std::atomic<size_t> entered_bytes{0};  // so many from the beginning on are in the page table

 private:
  uint8_t* reserve(size_t num_bytes, int protection);

  void* reserved_ = nullptr;  // with what is before a border and behind the end
  size_t reserved_bytes_ = 0;
};

// A chunk's file in memory, for as long as anybody has a copy of this.
class ChunkMap {
 public:
  ChunkMap() = default;
  ChunkMap(int fd, size_t num_bytes) : mapping_(std::make_shared<Mapping>(fd, num_bytes)) {
    data_ = mapping_->begin;
    num_bytes_ = num_bytes;
  }
  // A file that was read into a part of some memory, behind which more can be read.
  ChunkMap(std::shared_ptr<Mapping> memory, const uint8_t* data, size_t num_bytes)
      : mapping_(std::move(memory)), data_(data), num_bytes_(num_bytes) {}

  const uint8_t* data() const { return data_; }
  size_t num_bytes() const { return num_bytes_; }
  bool is_mapped() const { return mapping_ && mapping_->is_file; }

 private:
  friend bool are_in_memory(std::span<const ChunkMap> chunks);
  friend bool enter(std::span<const ChunkMap> chunks, size_t most_bytes);

  std::shared_ptr<Mapping> mapping_;
  const uint8_t* data_ = nullptr;
  size_t num_bytes_ = 0;
};

// Whether mapped chunks seem to lie in memory, by a look at some of their pages. Where one does not, all of them count
// as not entered.
bool are_in_memory(std::span<const ChunkMap> chunks);

// Reads chunks into memory and enters their pages, so that nobody has to stop at them later; at most about so many
// bytes. Returns whether all are entered. Costs some 25 milliseconds a gigabyte that lies in memory already.
bool enter(std::span<const ChunkMap> chunks, size_t most_bytes);

// How many bytes of a file lie in the page cache; all, where the system does not tell.
//
// Source: Linux man-pages, cachestat(2) and mincore(2): both tell only who owns the file or may write to it.
size_t cached_bytes(int fd, size_t num_bytes);

// Reads a part of a file into the page cache by huge pages, where the system has such; else nothing happens. An error of
// the disk is none here: it shows when the part is read.
void bring_in(int fd, size_t offset, size_t num_bytes);

// Which file a name stands for: its inode, below zero for none, when it was written, how long it is.
struct FileVersion {
  int64_t inode, mtime_ns, size_bytes;
};

// Whether a file is not there any more, or is another one.
bool has_changed(const char* name, const FileVersion& version);

// Chunk files read past the page cache, into memory that windows use one after the other.
//
//   window    0   1   2   3   4   5
//   memory    a   b   a   b   a   b       each is read while the one before it is used
//
// A page that is touched for the first time costs the processor as much as reading it ten times (8 to 10 microseconds
// on machines that get their memory from a host), a page that is used again costs nothing.

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

using ChunkFile = std::pair<int, size_t>;  // its descriptor, and how many bytes it has

// Reads files, side by side, by some threads of its own, and returns them in memory.
//
//   files      chunk 7, 40 MB            chunk 2, 13 MB         …
//   pieces     ┆ 0 ┆ 1 ┆ 2 ┆ 3 ┆ 4 ┆ …                          each taken by the thread that is free next
//
// Each file goes to a page's border, and what follows in its last page is written, too: past the page cache nothing but
// whole pages can be read. `waits`: see `WindowMemory::take`.
//
// Throws std::system_error: the disk failed, or a file is shorter than it was.
std::vector<ChunkMap> read_chunks(const std::vector<ChunkFile>& files, WindowMemory& memory, bool waits);

}  // namespace stoker
