#include "chunk_map.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
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

int64_t mtime_ns_of(const struct stat& about) {
#if defined(__APPLE__)
  const timespec& time = about.st_mtimespec;
#else
  const timespec& time = about.st_mtim;
#endif
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

bool has_changed(const char* name, const FileVersion& version) {
  struct stat about;
  if (version.inode < 0 || stat(name, &about) != 0) return true;
  return static_cast<int64_t>(about.st_ino) != version.inode || mtime_ns_of(about) != version.mtime_ns ||
         static_cast<int64_t>(about.st_size) != version.size_bytes;
}

}  // namespace

size_t page_bytes() {
  static const size_t found = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return found;
}

// Addresses without memory, zero where read: pages that are only read cost no memory and are not accounted for.
uint8_t* Mapping::reserve(size_t size) {
  const size_t slack = size >= kHugeBytes ? kHugeBytes : 0;
  reserved_bytes_ = size + slack;
  reserved_ = map(nullptr, reserved_bytes_, PROT_READ, kNoMemory, -1, 0);
  const size_t before = (0 - reinterpret_cast<uintptr_t>(reserved_)) % kHugeBytes;
  return static_cast<uint8_t*>(reserved_) + (slack ? before : 0);
}

Mapping::Mapping(size_t size) : num_bytes(size) {
  reserved_bytes_ = round_up(size, page_bytes()) + kHugeBytes;
  reserved_ = map(nullptr, reserved_bytes_, PROT_READ | PROT_WRITE, kNoMemory, -1, 0);
  begin = static_cast<uint8_t*>(reserved_) + (0 - reinterpret_cast<uintptr_t>(reserved_)) % kHugeBytes;
  advise_huge(reserved_, reserved_bytes_);
}

Mapping::Mapping(int fd, size_t size) : num_bytes(size), is_file(true) {
  const size_t with_room = round_up(size + kReadBehind, page_bytes());
  if (size < kHugeBytes && with_room == round_up(size, page_bytes())) {
    reserved_bytes_ = with_room;
    reserved_ = begin = map(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    return;
  }
  uint8_t* place = reserve(with_room);
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

size_t find_changed_files(const KnownFiles& known, std::span<const int64_t> files, std::span<bool> changed,
                          int64_t patience_ns) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto patience = std::chrono::nanoseconds(patience_ns);
  for (size_t i = 0; i < files.size(); ++i) {
    const size_t file = static_cast<size_t>(files[i]);
    changed[i] = has_changed(known.names + file * known.name_bytes, known.versions[file]);
    if (Clock::now() - start > patience) return i + 1;
  }
  return files.size();
}

}  // namespace stoker
