#include "chunk_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/syscall.h>
#endif

namespace stoker {
namespace {

#if defined(MAP_NORESERVE)
constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#else
constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS;
#endif

// Linux 5.14. Where it is unknown the system says so.
constexpr int kPopulateRead = 22;

// Pages looked at to see whether all chunks lie in memory, and at most in one of them.
constexpr size_t kNumLooks = 64, kNumLooksEach = 4;

size_t round_up(size_t size, size_t step) { return (size + step - 1) / step * step; }

uint8_t* map(void* at, size_t num_bytes, int protection, int flags, int fd, size_t offset) {
  void* found = mmap(at, num_bytes, protection, flags, fd, static_cast<off_t>(offset));
  if (found == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "mmap of " + std::to_string(num_bytes) + " bytes");
  }
  return static_cast<uint8_t*>(found);
}

void advise_huge([[maybe_unused]] void* begin, [[maybe_unused]] size_t num_bytes) {
#if defined(MADV_HUGEPAGE)
  madvise(begin, num_bytes, MADV_HUGEPAGE);
#endif
}

#if defined(__APPLE__)
using Seen = char;
#else
using Seen = unsigned char;
#endif

bool is_in_memory(const uint8_t* page) {
  Seen seen = 0;
  return mincore(const_cast<uint8_t*>(page), page_bytes(), &seen) == 0 && (seen & 1);
}

// What `cached_bytes` returns, by mapping the file, which older systems can tell of.
size_t mapped_bytes(int fd, size_t num_bytes) {
  if (!num_bytes) return 0;
  try {
    const Mapping content(fd, num_bytes);
    std::vector<Seen> seen(round_up(num_bytes, page_bytes()) / page_bytes());
    if (mincore(content.begin, num_bytes, seen.data()) != 0) return num_bytes;
    const auto num = std::count_if(seen.begin(), seen.end(), [](Seen page) { return page & 1; });
    return std::min(num_bytes, static_cast<size_t>(num) * page_bytes());
  } catch (const std::system_error&) {
    return num_bytes;
  }
}

// Memories that are in use at one time where nobody is slow: one window is used, the next one read.
constexpr size_t kNumWanted = 2;
// How long to wait for one of them before another is taken. The window before the last one is given back a few batches
// after the last one is first used; a loop that takes longer for these does not wait for windows.
constexpr std::chrono::milliseconds kWait(50);
// Windows in a row that needed no memory, after which what is free goes back: where only some of a data set lies in the
// page cache, windows that are mapped and windows that are read take turns.
constexpr size_t kMostUnused = 16;

// Whole epochs beside two threads that gather, disk alone 2.25 GB/s: eight threads with 512 KiB 2.0, twelve 2.07, three
// with 1 MiB 1.9, six 2.0, four with 4 MiB 1.8.
constexpr size_t kPieceBytes = size_t{512} << 10, kNumThreads = 8;

#if defined(O_DIRECT)
constexpr int kDirect = O_DIRECT;
#else
constexpr int kDirect = 0;
#endif

struct Piece {
  int fd;
  size_t offset, num_bytes;
  uint8_t* to;
};

void read(const Piece& piece) {
  for (size_t done = 0; done < piece.num_bytes;) {
    const size_t asked = round_up(piece.num_bytes, page_bytes()) - done;
    const ssize_t got = pread(piece.fd, piece.to + done, asked, static_cast<off_t>(piece.offset + done));
    if (got > 0) {
      done += static_cast<size_t>(got);
      continue;
    }
    if (got == 0) {
      const std::string missing = std::to_string(piece.num_bytes - done);
      throw std::system_error(EIO, std::generic_category(), "the file ends " + missing + " bytes too early");
    }
    if (errno == EINTR) continue;
    const int error = errno, flags = kDirect ? fcntl(piece.fd, F_GETFL) : 0;
    // A file system that takes the flag and then wants other borders, or has none.
    if (error != EINVAL || flags < 0 || !(flags & kDirect)) throw std::system_error(error, std::generic_category(), "pread");
    fcntl(piece.fd, F_SETFL, flags & ~kDirect);
  }
}

// Reads all pieces; the first failure ends it.
void read_all(std::span<const Piece> pieces) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> has_failed = false;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (size_t i; !has_failed && (i = next++) < pieces.size();) read(pieces[i]);
    } catch (...) {
      if (!has_failed.exchange(true)) failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(kNumThreads);
  try {
    while (threads.size() + 1 < std::min(kNumThreads, pieces.size())) threads.emplace_back(work);
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): where no more can be had, these read all
  }
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

size_t page_bytes() {
  static const size_t found = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return found;
}

// Reserves addresses without memory; where a huge page may lie there, from such a page's border on.
uint8_t* Mapping::reserve(size_t size, int protection) {
  const bool is_huge = size >= kHugeBytes;
  reserved_bytes_ = size + is_huge * kHugeBytes;
  reserved_ = map(nullptr, reserved_bytes_, protection, kNoMemory, -1, 0);
  const size_t before = (0 - reinterpret_cast<uintptr_t>(reserved_)) % kHugeBytes;
  return static_cast<uint8_t*>(reserved_) + is_huge * before;
}

Mapping::Mapping(size_t size) : num_bytes(size) {
  begin = reserve(round_up(size, page_bytes()), PROT_READ | PROT_WRITE);
  advise_huge(reserved_, reserved_bytes_);
}

// What is behind the file is zero where read: pages that are only read cost no memory and are not accounted for.
Mapping::Mapping(int fd, size_t size) : num_bytes(size), is_file(true) {
  const size_t with_room = round_up(size + kReadBehind, page_bytes());
  if (size < kHugeBytes && with_room == round_up(size, page_bytes())) {
    reserved_bytes_ = with_room;
    reserved_ = begin = map(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    return;
  }
  uint8_t* place = reserve(with_room, PROT_READ);
  try {
    begin = map(place, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
  } catch (...) {
    munmap(reserved_, reserved_bytes_);
    throw;
  }
  if (size >= kHugeBytes) advise_huge(begin, size);  // what has to come from the disk comes in huge pages, too
}

Mapping::~Mapping() { munmap(reserved_, reserved_bytes_); }

bool are_in_memory(std::span<const ChunkMap> chunks) {
  const size_t page = page_bytes(), num_each = std::clamp<size_t>(kNumLooks / std::max<size_t>(1, chunks.size()), 1, kNumLooksEach);
  const size_t step = std::max<size_t>(1, (chunks.size() + kNumLooks - 1) / kNumLooks);
  for (size_t i = 0; i < chunks.size(); i += step) {
    if (!chunks[i].is_mapped()) continue;
    const size_t last = (chunks[i].num_bytes() - 1) / page;
    for (size_t look = 0; look < num_each; ++look) {
      if (is_in_memory(chunks[i].data() + look * last / std::max<size_t>(1, num_each - 1) * page)) continue;
      for (const ChunkMap& chunk : chunks) {
        if (chunk.is_mapped()) chunk.mapping_->entered_bytes = 0;
      }
      return false;
    }
  }
  return true;
}

bool enter(std::span<const ChunkMap> chunks, size_t most_bytes) {
  for (const ChunkMap& chunk : chunks) {
    if (!chunk.is_mapped()) continue;
    Mapping& mapping = *chunk.mapping_;
    const size_t whole = round_up(mapping.num_bytes, page_bytes());
    for (size_t begin = mapping.entered_bytes; begin < whole;) {
      if (!most_bytes) return false;
      const size_t some = std::min(whole - begin, round_up(most_bytes, page_bytes()));
      if (madvise(mapping.begin + begin, some, kPopulateRead) != 0) {
        madvise(mapping.begin + begin, some, MADV_WILLNEED);  // an older system: read, at least
      }
      mapping.entered_bytes = begin += some;
      most_bytes -= std::min(most_bytes, some);
    }
  }
  return true;
}

size_t cached_bytes(int fd, size_t num_bytes) {
#if defined(__linux__)
  constexpr long kCachestat = 451;  // Linux 6.5; the same number on every processor
  const uint64_t range[2] = {0, num_bytes};
  struct {
    uint64_t cached, dirty, in_writeback, evicted, recently_evicted;
  } counts{};
  if (syscall(kCachestat, fd, range, &counts, 0) == 0) return std::min<size_t>(num_bytes, counts.cached * page_bytes());
#endif
  return mapped_bytes(fd, num_bytes);
}

void bring_in([[maybe_unused]] int fd, [[maybe_unused]] size_t offset, [[maybe_unused]] size_t num_bytes) {
#if defined(MADV_HUGEPAGE)
  void* found = mmap(nullptr, num_bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (found == MAP_FAILED) return;
  if (madvise(found, num_bytes, MADV_HUGEPAGE) == 0) madvise(found, num_bytes, kPopulateRead);
  munmap(found, num_bytes);
#endif
}

bool has_changed(const char* name, const FileVersion& version) {
  struct stat about;
  if (version.inode < 0 || stat(name, &about) != 0) return true;
#if defined(__APPLE__)
  const timespec& time = about.st_mtimespec;
#else
  const timespec& time = about.st_mtim;
#endif
  return static_cast<int64_t>(about.st_ino) != version.inode || static_cast<int64_t>(about.st_size) != version.size_bytes ||
         static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec != version.mtime_ns;
}

struct WindowMemory::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<Mapping>> free;
  size_t num_given = 0, num_needed = 0, num_unused = 0;

  void give(std::unique_ptr<Mapping> mapping) {
    const std::lock_guard lock(mutex);
    --num_given;
    // As many as were ever in use at one time: one that were let go of would be missed soon, and cost its pages.
    if (num_given + free.size() < num_needed) free.push_back(std::move(mapping));
    changed.notify_one();
  }
};

WindowMemory::WindowMemory() : state_(std::make_shared<State>()) {}

std::shared_ptr<Mapping> WindowMemory::take(size_t num_bytes, bool waits) {
  State& state = *state_;
  std::unique_ptr<Mapping> found;
  std::unique_lock lock(state.mutex);
  state.num_unused = 0;
  if (waits && state.num_given >= kNumWanted && state.free.empty())
    state.changed.wait_for(lock, kWait, [&] { return state.num_given < kNumWanted || !state.free.empty(); });
  const auto fits = std::ranges::find_if(state.free, [&](const auto& mapping) { return mapping->num_bytes >= num_bytes; });
  if (fits != state.free.end()) {
    found = std::move(*fits);
    state.free.erase(fits);
  } else {
    state.free.clear();  // too small for what is needed now
    lock.unlock();
    // Windows differ in size: a quarter more. Addresses beyond what is read cost nothing. Read into whole huge pages, a
    // disk gives 2.1 to 2.6 GB/s here, into pages of 4 KiB 1.3 to 1.8.
    found = std::make_unique<Mapping>(num_bytes + num_bytes / 4);
    lock.lock();
  }
  state.num_needed = std::max(state.num_needed, ++state.num_given);
  lock.unlock();
  return {found.release(), [state = state_](Mapping* mapping) { state->give(std::unique_ptr<Mapping>(mapping)); }};
}

void WindowMemory::rest() {
  const std::lock_guard lock(state_->mutex);
  if (++state_->num_unused >= kMostUnused) state_->free.clear();
}

void WindowMemory::clear() {
  const std::lock_guard lock(state_->mutex);
  state_->free.clear();
}

size_t WindowMemory::num_free() const {
  const std::lock_guard lock(state_->mutex);
  return state_->free.size();
}

std::vector<ChunkMap> read_chunks(const std::vector<ChunkFile>& files, WindowMemory& memory, bool waits) {
  size_t end = 0;
  for (const auto& [fd, num_bytes] : files) end += round_up(num_bytes, page_bytes());
  const std::shared_ptr<Mapping> target = memory.take(end + kReadBehind, waits);
  std::vector<ChunkMap> chunks;
  std::vector<Piece> pieces;
  uint8_t* at = target->begin;
  for (const auto& [fd, num_bytes] : files) {
    chunks.emplace_back(target, at, num_bytes);
    for (size_t begin = 0; begin < num_bytes; begin += kPieceBytes)
      pieces.push_back({fd, begin, std::min(kPieceBytes, num_bytes - begin), at + begin});
    at += round_up(num_bytes, page_bytes());
  }
  read_all(pieces);
  return chunks;
}

}  // namespace stoker
